// Device guard, streams, events, hooks and the pinned-memory allocator: what torch asks of a device outside operators.
//
// Invariant: an accel stream has the id of the native stream it stands for, so a stream of a CUDA device *is* CUDA's
// and is kept across the route. On a host device work is synchronous: streams are ids, events are time stamps.
#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>

#include "core/memory_stats.h"
#include "torch/compat.h"
#include "torch/device.h"
#include "torch/generator.h"

namespace accel {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

using Clock = std::chrono::steady_clock;
thread_local std::array<c10::StreamId, kMaxDevices> host_streams{};
std::atomic<c10::StreamId> next_host_stream{1};

const c10::impl::DeviceGuardImplInterface* impl_of(const NativeDevice& native) {
  return c10::impl::getDeviceGuardImpl(native.device.type());
}
Stream to_native(const NativeDevice& native, const Stream& stream) {
  return Stream(Stream::UNSAFE, native.device, stream.id());
}
Stream to_accel(DeviceIndex index, c10::StreamId id) { return Stream(Stream::UNSAFE, Device(kAccel, index), id); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kAccel; }
  Device exchangeDevice(Device device) const override { return Device(kAccel, exchange_device(device.index())); }
  Device getDevice() const override { return Device(kAccel, current_device()); }
  void setDevice(Device device) const override { exchange_device(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override {
    try {
      exchange_device(device.index());
    } catch (...) {  // called from destructors
    }
  }
  DeviceIndex deviceCount() const noexcept override { return device_count(); }

  c10::DeviceCapability getDeviceCapability(Device device) const override {
    const auto& native = native_device(with_index(device).index());
    return impl_of(native)->getDeviceCapability(native.device);
  }

  Stream getStream(Device device) const override {
    const auto index = with_index(device).index();
    const auto& native = native_device(index);
    return to_accel(index, native.host ? host_streams[index] : impl_of(native)->getStream(native.device).id());
  }
  Stream getDefaultStream(Device device) const override {
    const auto index = with_index(device).index();
    const auto& native = native_device(index);
    return to_accel(index, native.host ? 0 : impl_of(native)->getDefaultStream(native.device).id());
  }
  Stream getStreamFromGlobalPool(Device device, bool high_priority) const override {
    const auto index = with_index(device).index();
    const auto& native = native_device(index);
    return to_accel(index, native.host ? next_host_stream++
                                       : impl_of(native)->getStreamFromGlobalPool(native.device, high_priority).id());
  }
  Stream getNewStream(Device device, int priority) const override {
    const auto index = with_index(device).index();
    const auto& native = native_device(index);
    return to_accel(index,
                    native.host ? next_host_stream++ : impl_of(native)->getNewStream(native.device, priority).id());
  }
  Stream exchangeStream(Stream stream) const override {
    const auto index = stream.device_index();
    const auto& native = native_device(index);
    if (native.host) return to_accel(index, std::exchange(host_streams[index], stream.id()));
    return to_accel(index, impl_of(native)->exchangeStream(to_native(native, stream)).id());
  }
  void* getStreamNativeHandle(const Stream stream) const override {
    const auto& native = native_device(stream.device_index());
    return native.host ? nullptr : impl_of(native)->getStreamNativeHandle(to_native(native, stream));
  }
  bool queryStream(const Stream& stream) const override {
    const auto& native = native_device(stream.device_index());
    return native.host || impl_of(native)->queryStream(to_native(native, stream));
  }
  void synchronizeStream(const Stream& stream) const override {
    const auto& native = native_device(stream.device_index());
    if (!native.host) impl_of(native)->synchronizeStream(to_native(native, stream));
  }
  bool isStreamCapturing(const Stream& stream) const
#if ACCEL_TORCH_GE(2, 12)  // COMPAT: the virtual appears in 2.12; remove the condition when 2.12 is the minimum
      override
#endif
  {
#if ACCEL_TORCH_GE(2, 13)  // COMPAT: 2.12 throws by default; remove when 2.13 is the minimum
    const auto& native = native_device(stream.device_index());
    return !native.host && impl_of(native)->isStreamCapturing(to_native(native, stream));
#else
    (void)stream;
    return false;
#endif
  }
  void synchronizeDevice(const DeviceIndex index) const override {
    const auto& native = native_device(index);
    if (!native.host) impl_of(native)->synchronizeDevice(native.device.index());
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    device_allocator()->recordStream(data, stream);
  }

  void record(void** handle, const Stream& stream, const DeviceIndex index, const c10::EventFlag flag) const override {
    const auto device = stream.device_index();
    TORCH_CHECK(index == -1 || index == device,
                "torch_accel: Event.record: expected a stream of accel:", static_cast<int>(index),
                ", got one of accel:", static_cast<int>(device));
    if (*handle == nullptr) *handle = new Event{device};
    auto* event = static_cast<Event*>(*handle);
    const auto& native = native_device(device);
    event->time = Clock::now();
    if (!native.host) impl_of(native)->record(&event->native, to_native(native, stream), native.device.index(), flag);
  }
  void block(void* handle, const Stream& stream) const override {
    const auto& native = native_device(stream.device_index());
    const auto* event = static_cast<Event*>(handle);
    if (event == nullptr || native_device(event->device).host) return;
    if (native.host) return impl_of(native_device(event->device))->synchronizeEvent(event->native);
    impl_of(native)->block(event->native, to_native(native, stream));
  }
  bool queryEvent(void* handle) const override {
    const auto* event = static_cast<Event*>(handle);
    if (event == nullptr) return true;
    const auto& native = native_device(event->device);
    return native.host || impl_of(native)->queryEvent(event->native);
  }
  void synchronizeEvent(void* handle) const override {
    const auto* event = static_cast<Event*>(handle);
    if (event == nullptr) return;
    const auto& native = native_device(event->device);
    if (!native.host) impl_of(native)->synchronizeEvent(event->native);
  }
  void destroyEvent(void* handle, const DeviceIndex) const noexcept override {
    const auto* event = static_cast<Event*>(handle);
    if (event && event->native && DeviceTable::ready()) {
      const auto& native = native_device(event->device);
      impl_of(native)->destroyEvent(event->native, native.device.index());
    }
    delete event;
  }
  double elapsedTime(void* from, void* to, const DeviceIndex index) const override {
    TORCH_CHECK(from && to, "torch_accel: Event.elapsed_time: expected two recorded events, got an unrecorded one");
    const auto *start = static_cast<Event*>(from), *end = static_cast<Event*>(to);
    const auto& native = native_device(index);
    if (!native.host) return impl_of(native)->elapsedTime(start->native, end->native, native.device.index());
    return std::chrono::duration<double, std::milli>(end->time - start->time).count();
  }

 private:
  struct Event {
    DeviceIndex device;
    Clock::time_point time{};
    void* native = nullptr;  // event of the native device, where that is not the host
  };
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Page-locked memory of the native device where there is one; where the device is the host, ordinary memory that
// remembers being pinned, so that programs see the same answers.
class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (auto* native = native_host()) return native->allocate(bytes);
    c10::DataPtr plain = c10::GetAllocator(c10::DeviceType::CPU)->allocate(bytes);
    void* data = plain.get();
    if (data == nullptr) return plain;
    std::lock_guard<std::mutex> guard(mutex_);
    auto& block = blocks_[data];
    block = {bytes, std::move(plain)};
    requests_.increase(1);
    bytes_.increase(bytes);
    return {data, data, &PinnedAllocator::free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* dest, const void* src, std::size_t count) const override { default_copy_data(dest, src, count); }

  bool is_pinned(const void* data) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto it = blocks_.upper_bound(const_cast<void*>(data));
    if (it == blocks_.begin()) return false;
    --it;
    return data < static_cast<const char*>(it->first) + it->second.bytes;
  }

  bool record_event(void* ptr, void* ctx, c10::Stream stream) override {
    auto* native = native_host();
    return native == nullptr || native->record_event(ptr, ctx, to_native(native_device(stream.device_index()), stream));
  }
  void empty_cache() override {
    if (auto* native = native_host()) native->empty_cache();
  }
  at::HostStats get_stats() override {
    if (auto* native = native_host()) return native->get_stats();
    std::lock_guard<std::mutex> guard(mutex_);
    at::HostStats stats;
    stats.active_requests = stats.allocations = requests_;
    stats.active_bytes = stats.allocated_bytes = bytes_;
    stats.num_host_alloc = requests_.allocated;
    stats.num_host_free = requests_.freed;
    return stats;
  }
  void reset_accumulated_stats() override {
    if (auto* native = native_host()) return native->reset_accumulated_stats();
    std::lock_guard<std::mutex> guard(mutex_);
    requests_.reset_accumulated();
    bytes_.reset_accumulated();
  }
  void reset_peak_stats() override {
    if (auto* native = native_host()) return native->reset_peak_stats();
    std::lock_guard<std::mutex> guard(mutex_);
    requests_.reset_peak();
    bytes_.reset_peak();
  }

  static PinnedAllocator& instance() {
    static auto* allocator = new PinnedAllocator();  // leaks-on-purpose: pinned tensors may outlive static destructors
    return *allocator;
  }

 private:
  struct Block {
    size_t bytes = 0;
    c10::DataPtr memory;
  };

  static void free(void* data) {
    auto& self = instance();
    c10::DataPtr memory;  // freed after the lock
    std::lock_guard<std::mutex> guard(self.mutex_);
    auto it = self.blocks_.find(data);
    self.requests_.decrease(1);
    self.bytes_.decrease(it->second.bytes);
    memory = std::move(it->second.memory);
    self.blocks_.erase(it);
  }
  static at::HostAllocator* native_host() {
    const auto& native = native_device(current_device());
    return native.host ? nullptr : at::getHostAllocator(native.device.type());
  }

  std::mutex mutex_;
  std::map<void*, Block> blocks_;
  at::Stat requests_, bytes_;
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return DeviceTable::ready(); }
  void init() const override { ensure_ready(); }
  DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(DeviceIndex index) const override { exchange_device(index); }
  DeviceIndex getCurrentDevice() const override { return current_device(); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return exchange_device(index); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchange_device(index); }

  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override { return make_generator(index); }

  bool isPinnedPtr(const void* data) const override {
    if (!DeviceTable::ready()) return false;  // nothing can be pinned before the first use
    const auto& native = native_device(current_device());
    if (native.host) return PinnedAllocator::instance().is_pinned(data);
    return at::globalContext().getAcceleratorHooksInterface(native.device.type()).isPinnedPtr(data);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &PinnedAllocator::instance(); }
  Device getDeviceFromPtr(void*) const override { return Device(kAccel, current_device()); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  at::setHostAllocator(kAccel, &PinnedAllocator::instance());
  return true;
}();

}  // namespace
}  // namespace accel
