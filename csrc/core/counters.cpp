#include "core/counters.h"

namespace accel {

Counters& Counters::instance() {
  static auto* counters = new Counters();  // leaks-on-purpose: counted until the very end
  return *counters;
}

bool Counters::add_fallback(const std::string& op, size_t bytes, const std::string& source) {
  std::lock_guard<std::mutex> guard(mutex_);
  FallbackCounter& counter = fallbacks_[op];
  counter.bytes += bytes;
  if (!source.empty()) ++counter.sources[source];
  return counter.count++ == 0;
}

std::map<std::string, FallbackCounter> Counters::fallbacks() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return fallbacks_;
}

void Counters::reset() {
  std::lock_guard<std::mutex> guard(mutex_);
  fallbacks_.clear();
  for (CopyCounter* copies : {&host_to_device, &device_to_host, &device_to_device}) {
    copies->count = 0;
    copies->bytes = 0;
  }
}

}  // namespace accel
