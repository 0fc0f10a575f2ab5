// The CPU fallback: what a backend lacks runs on the CPU, visibly.
//
// Invariants: every fallback is counted by operator with the bytes copied and the caller's source line; under "error"
// nothing is copied and nothing runs. Views and factories never come here (op_table.cpp).
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace accel {

enum class Fallback : int { warn, allow, error };

Fallback fallback_policy();  // of this thread, else of the process
void set_fallback_policy(Fallback policy);
void set_thread_fallback_policy(std::optional<Fallback> policy);
// Gives "file:line" of the user's code; called with no lock held.
void set_source_hook(std::function<std::string()> hook);

}  // namespace accel
