#include "core/memory_stats.h"

namespace accel {

void MemoryStats::Series::add(int64_t amount) {
  total_.fetch_add(amount, std::memory_order_relaxed);
  const int64_t now = current.fetch_add(amount, std::memory_order_relaxed) + amount;
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < now && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
}

void MemoryStats::Series::reset_accumulated() {
  allocated_before_.store(total_);
  freed_before_.store(total_ - current);
}

void MemoryStats::add(size_t size) {
  if (size == 0) return;
  bytes.add(static_cast<int64_t>(size));
  count.add(1);
}

void MemoryStats::remove(size_t size) {
  if (size == 0) return;
  bytes.remove(static_cast<int64_t>(size));
  count.remove(1);
}

MemoryStats& memory_stats(int device) {
  // leaks-on-purpose: cells may be freed after static destructors have run.
  static auto* all = new MemoryStats[kMaxDevices];
  return all[device];
}

}  // namespace accel
