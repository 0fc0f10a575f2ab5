// A Backend over any PJRT plugin: a shared library with one C function, GetPjrtApi.
//
// Invariants
//   * Nothing is linked: the library is opened by path, with its symbols kept to itself, initialised once, and stays
//     loaded for ever, since plugins do not survive unloading.
//   * The plugin's table of functions is only as long as the plugin says. Each call checks that its entry exists.
//   * PJRT's types and header stay in pjrt_backend.cpp. Built without the header, open_pjrt is UNIMPLEMENTED.
// Who may call: the owner of backends (and tests), any thread. Opening a second client of one library is allowed where
// the plugin allows it; a TPU or GPU usually has room for one client per machine or per memory budget.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/backend.h"
#include "core/status.h"

namespace accel {

using PjrtValue = std::variant<std::string, int64_t, std::vector<int64_t>, float, bool>;
using PjrtOptions = std::vector<std::pair<std::string, PjrtValue>>;

// `path`: the plugin's file. `options`: create options of the plugin, such as {"cpu_device_count", 2}.
Result<std::shared_ptr<Backend>> open_pjrt(const std::string& path, const PjrtOptions& options);

// Minor version of the plugin's PJRT API; opens the library but no client.
Result<int> pjrt_api_minor(const std::string& path);

// One XLA flag, such as ("xla_cpu_enable_fast_math", false), as bytes for Device::compile. Flags add up by joining the
// bytes. A list or float value is INVALID_ARGUMENT: the encoding has strings, bools, integers and doubles only.
Result<std::string> pjrt_compile_option(std::string_view name, const PjrtValue& value);

}  // namespace accel
