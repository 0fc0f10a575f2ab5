// Counters: what ran on the CPU instead of the device, and what was copied. Public API through Python; tests assert on
// them. Off the hot path: only a fallback or a copy between devices touches them. Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace accel {

struct CopyCounter {
  std::atomic<uint64_t> count{0}, bytes{0};
  void add(size_t size) {
    count.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(size, std::memory_order_relaxed);
  }
};

struct FallbackCounter {
  uint64_t count = 0, bytes = 0;            // bytes: copied to the CPU and back
  std::map<std::string, uint64_t> sources;  // "file:line" of the caller -> count
};

class Counters {
 public:
  static Counters& instance();

  CopyCounter host_to_device, device_to_host, device_to_device;

  // True when this is the operator's first fallback since the last reset.
  bool add_fallback(const std::string& op, size_t bytes, const std::string& source);
  std::map<std::string, FallbackCounter> fallbacks() const;
  void reset();

 private:
  mutable std::mutex mutex_;
  std::map<std::string, FallbackCounter> fallbacks_;
};

}  // namespace accel
