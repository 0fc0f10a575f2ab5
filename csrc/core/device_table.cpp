#include "core/device_table.h"

#include <pthread.h>

#include <stdexcept>

#include "core/memory_stats.h"

namespace accel {

DeviceTable& DeviceTable::instance() {
  static auto* table = new DeviceTable();  // leaks-on-purpose: used from destructors of tensors at exit
  return *table;
}

DeviceTable::DeviceTable() {
  pthread_atfork(nullptr, nullptr, [] {
    DeviceTable& table = instance();
    table.bad_fork_ = table.bad_fork_ || table.ready_;
    table.ready_ = false;
  });
}

const std::vector<DeviceEntry>& DeviceTable::entries() {
  if (!resolved()) {
    if (!resolver_) throw std::runtime_error("torch_accel: device table: expected a resolver (import torch_accel)");
    // The resolver serialises itself (it runs under Python's lock) and may be entered again by a thread that lost the
    // race: the first result stays.
    auto found = resolver_();
    if (found.size() > kMaxDevices) {
      throw std::runtime_error("torch_accel: device table: expected at most " + std::to_string(kMaxDevices) +
                               " devices, got " + std::to_string(found.size()) +
                               " (name fewer backends in TORCH_ACCEL_BACKEND)");
    }
    static std::atomic_flag lock = ATOMIC_FLAG_INIT;
    while (lock.test_and_set(std::memory_order_acquire)) {
    }
    if (!resolved()) {
      entries_ = std::move(found);
      resolved_.store(true, std::memory_order_release);
    }
    lock.clear(std::memory_order_release);
  }
  return entries_;
}

void DeviceTable::initialize() {
  if (bad_fork_) {
    throw std::runtime_error(
        "torch_accel: device: expected use in the process that initialised it, got a forked subprocess (use the "
        "'spawn' "
        "start method, or fork before the first use of the device)");
  }
  entries();
  ready_.store(true, std::memory_order_relaxed);
}

}  // namespace accel
