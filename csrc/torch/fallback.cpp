#include "torch/fallback.h"

#include <atomic>

#include "core/counters.h"
#include "torch/call.h"
#include "torch/generator.h"

namespace accel {
namespace {

std::atomic<Fallback> process_policy{Fallback::warn};
thread_local std::optional<Fallback> thread_policy;
std::function<std::string()> source_hook;

}  // namespace

Fallback fallback_policy() { return thread_policy.value_or(process_policy.load(std::memory_order_relaxed)); }
void set_fallback_policy(Fallback policy) { process_policy = policy; }
void set_thread_fallback_policy(std::optional<Fallback> policy) { thread_policy = policy; }
void set_source_hook(std::function<std::string()> hook) { source_hook = std::move(hook); }

void fall_back(const c10::OperatorHandle& op, OpEntry& entry, Call& call, torch::jit::Stack& stack) {
  const Fallback policy = fallback_policy();
  TORCH_CHECK_NOT_IMPLEMENTED(policy != Fallback::error, "torch_accel: ", entry.name, ": expected a kernel on backend ",
                              call.native().backend,
                              ", got none (torch_accel.fallback(\"allow\") lets the CPU run it)");
  const std::string source = source_hook ? source_hook() : std::string();
  call.enter(Call::Mode::copy);
  {
    std::optional<LentGenerator> lent;
    if (entry.seeded) lent.emplace(call.device(), c10::Device(c10::DeviceType::CPU));
    op.callBoxed(&stack);
  }
  call.leave();
  const bool first = Counters::instance().add_fallback(entry.name, call.copied_bytes(), source);
  if (first && policy == Fallback::warn) {
    TORCH_WARN("torch_accel: ", entry.name, " has no kernel on backend ", call.native().backend, " and ran on the CPU",
               source.empty() ? "" : " at ", source,
               " (reported once per operator; see torch_accel.counters() and torch_accel.fallback())");
  }
}

}  // namespace accel
