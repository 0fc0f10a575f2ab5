// The device table: accel:i is entry i, whatever backend it belongs to.
//
// Invariants
//   * Empty until first needed; then filled once by the resolver and never changed. A resolver that throws leaves the
//     table empty and its exception goes to the caller, each time.
//   * initialize() is the point of first use. A process forked after it must not use the device: ready() is false there
//     and initialize() throws. Forking before it is safe.
// Who may call: anybody, any thread. ready() is on the hot path: one relaxed load.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace accel {

struct DeviceEntry {
  std::string backend;  // name of the backend, as in TORCH_ACCEL_BACKEND
  std::string route;    // "native"; "graph" and "kernels" take their place here
  std::string key;      // native route: dispatch key the operators are sent to, "CPU" or "CUDA"
  int index = 0;        // index of the device within its backend
};

class DeviceTable {
 public:
  using Resolver = std::function<std::vector<DeviceEntry>()>;

  static DeviceTable& instance();

  void set_resolver(Resolver resolver) { resolver_ = std::move(resolver); }
  // Resolves on first call.
  const std::vector<DeviceEntry>& entries();
  bool resolved() const { return resolved_.load(std::memory_order_acquire); }

  void initialize();
  static bool ready() { return ready_.load(std::memory_order_relaxed); }
  bool bad_fork() const { return bad_fork_; }

 private:
  DeviceTable();

  Resolver resolver_;
  std::vector<DeviceEntry> entries_;
  std::atomic<bool> resolved_{false};
  static inline std::atomic<bool> ready_{false};
  bool bad_fork_ = false;
};

}  // namespace accel
