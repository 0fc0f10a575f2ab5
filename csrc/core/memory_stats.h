// MemoryStats: bytes and count of the live cells of a device, with their peaks.
//
// Invariant: current == allocated - freed, and peak >= current since the last reset_peak().
// Lock-free, any thread. Zero-byte cells are not allocations and are not counted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace accel {

constexpr int kMaxDevices = 64;

struct MemoryStats {
  struct Series {
    std::atomic<int64_t> current{0}, peak{0}, allocated{0}, freed{0};
    void add(int64_t amount);
    void remove(int64_t amount);
    void reset_peak();
    void reset_accumulated();
  };
  Series bytes, count;

  void add(size_t size);
  void remove(size_t size);
};

MemoryStats& memory_stats(int device);

}  // namespace accel
