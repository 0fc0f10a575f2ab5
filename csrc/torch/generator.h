// Random number generators of accel devices.
//
// Invariant: an accel generator wraps a generator of the native device and forwards to it; kernels are handed the
// wrapped one (native_generator), never the wrapper, so that a re-dispatched operator cannot come back to the accel
// key.
#pragma once

#include <ATen/core/Generator.h>

namespace accel {

// The default generator of accel:index.
const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator make_generator(c10::DeviceIndex index);
// Unwraps. Throws RuntimeError for a generator of another device.
const at::Generator& native_generator(const at::Generator& generator);

}  // namespace accel
