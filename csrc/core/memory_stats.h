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
    std::atomic<int64_t> current{0}, peak{0};

    void add(int64_t amount) {
      total_.fetch_add(amount, std::memory_order_relaxed);
      const int64_t now = current.fetch_add(amount, std::memory_order_relaxed) + amount;
      int64_t seen = peak.load(std::memory_order_relaxed);
      while (seen < now && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
      }
    }
    void remove(int64_t amount) { current.fetch_sub(amount, std::memory_order_relaxed); }

    // Since the last reset_accumulated(). What was freed follows from the other two, which saves an atomic per free.
    int64_t allocated() const { return total_ - allocated_before_; }
    int64_t freed() const { return total_ - current - freed_before_; }
    void reset_peak() { peak.store(current.load()); }
    void reset_accumulated() {
      allocated_before_.store(total_);
      freed_before_.store(total_ - current);
    }

   private:
    std::atomic<int64_t> total_{0}, allocated_before_{0}, freed_before_{0};
  };
  Series bytes, count;

  void add(size_t size) {
    if (size == 0) return;
    bytes.add(static_cast<int64_t>(size));
    count.add(1);
  }
  void remove(size_t size) {
    if (size == 0) return;
    bytes.remove(static_cast<int64_t>(size));
    count.remove(1);
  }
};

// Trivially destructible, so cells may be freed after static destructors have run.
inline MemoryStats all_memory_stats[kMaxDevices];
inline MemoryStats& memory_stats(int device) { return all_memory_stats[device]; }

}  // namespace accel
