// Random number generators of accel devices.
//
// Invariant: an accel generator wraps a generator of the native device and forwards to it; kernels are handed the
// wrapped one (native_generator), never the wrapper, so that a re-dispatched operator cannot come back to the accel
// key.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace accel {

// The default generator of accel:index.
const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator make_generator(c10::DeviceIndex index);
// Unwraps. Throws RuntimeError for a generator of another device.
const at::Generator& native_generator(const at::Generator& generator);

// While it lives, the default generator of `runs_on`, a native device or the CPU, continues the random numbers of
// accel:index: for kernels that draw but take no generator.
class LentGenerator {
 public:
  LentGenerator(c10::DeviceIndex index, c10::Device runs_on);
  LentGenerator(const LentGenerator&) = delete;
  LentGenerator& operator=(const LentGenerator&) = delete;
  ~LentGenerator();

 private:
  void exchange_states();
  at::Generator theirs_, ours_;
  at::Tensor before_;  // state of theirs, where the kinds of generator differ and states cannot be exchanged
};

}  // namespace accel
