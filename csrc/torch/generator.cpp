#include "torch/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/GeneratorImpl.h>

#include <array>
#include <mutex>

#include "core/memory_stats.h"
#include "torch/device.h"

namespace accel {
namespace {

class AccelGenerator final : public c10::GeneratorImpl {
 public:
  AccelGenerator(c10::DeviceIndex index, at::Generator native)
      : GeneratorImpl(c10::Device(kAccel, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        native(std::move(native)) {}

  void set_current_seed(uint64_t seed) override { native.set_current_seed(seed); }
  // The CPU's generator has no offset, and torch asks for one when it pickles a generator of any other device type.
  void set_offset(uint64_t offset) override {
    if (on_host() && offset == 0) return;
    native.set_offset(offset);
  }
  uint64_t get_offset() const override { return on_host() ? 0 : native.get_offset(); }
  uint64_t current_seed() const override { return native.current_seed(); }
  uint64_t seed() override { return native.unsafeGetGeneratorImpl()->seed(); }
  void set_state(const c10::TensorImpl& state) override { native.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return native.unsafeGetGeneratorImpl()->get_state();
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override {
    native.unsafeGetGeneratorImpl()->graphsafe_set_state(
        static_cast<AccelGenerator*>(state.get())->native.getIntrusivePtr());
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::make_intrusive<AccelGenerator>(device().index(),
                                               at::Generator(native.unsafeGetGeneratorImpl()->graphsafe_get_state()));
  }

  at::Generator native;

 private:
  bool on_host() const { return native.device().type() == c10::DeviceType::CPU; }
  GeneratorImpl* clone_impl() const override { return new AccelGenerator(device().index(), native.clone()); }
};

at::Generator make_native(c10::DeviceIndex index) {
  const NativeDevice& native = native_device(index);
  if (native.host) return at::detail::createCPUGenerator();
  return at::globalContext().getAcceleratorHooksInterface(native.device.type()).getNewGenerator(native.device.index());
}

}  // namespace

at::Generator make_generator(c10::DeviceIndex index) {
  if (index < 0) index = current_device();
  return at::Generator(c10::make_intrusive<AccelGenerator>(index, make_native(index)));
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static std::array<at::Generator, kMaxDevices> generators;
  static std::array<std::once_flag, kMaxDevices> made;
  if (index < 0) index = current_device();
  native_device(index);  // checks the index
  std::call_once(made[index], [index] {
    generators[index] = make_generator(index);
    generators[index].unsafeGetGeneratorImpl()->seed();
  });
  return generators[index];
}

const at::Generator& native_generator(const at::Generator& generator) {
  TORCH_CHECK(generator.device().type() == kAccel, "torch_accel: generator: expected device type 'accel', got '",
              generator.device(), "' (make one with torch.Generator(device=\"accel\"))");
  return static_cast<AccelGenerator*>(generator.unsafeGetGeneratorImpl())->native;
}

LentGenerator::LentGenerator(c10::DeviceIndex index, c10::Device runs_on)
    : theirs_(at::globalContext().defaultGenerator(runs_on)), ours_(native_generator(default_generator(index))) {
  if (theirs_.device().type() == ours_.device().type()) {
    exchange_states();
    return;
  }
  std::scoped_lock lock(theirs_.mutex(), ours_.mutex());
  before_ = at::Tensor(theirs_.unsafeGetGeneratorImpl()->get_state());
  const auto offset = ours_.get_offset();
  theirs_.set_current_seed(ours_.current_seed() + offset);
  ours_.set_offset(offset + 4);  // the next call draws other numbers
}

LentGenerator::~LentGenerator() {
  if (!before_.defined()) {
    exchange_states();
    return;
  }
  std::scoped_lock lock(theirs_.mutex());
  theirs_.unsafeGetGeneratorImpl()->set_state(*before_.unsafeGetTensorImpl());
}

void LentGenerator::exchange_states() {
  std::scoped_lock lock(theirs_.mutex(), ours_.mutex());
  auto state = theirs_.unsafeGetGeneratorImpl()->get_state();
  theirs_.unsafeGetGeneratorImpl()->set_state(*ours_.unsafeGetGeneratorImpl()->get_state());
  ours_.unsafeGetGeneratorImpl()->set_state(*state);
}

}  // namespace accel
