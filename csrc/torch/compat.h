// Every difference between torch minors that this folder has to know, each with its range and when it can go.
#pragma once

#include <torch/version.h>

#define ACCEL_TORCH_GE(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if !ACCEL_TORCH_GE(2, 11)
#error "torch_accel needs torch 2.11 or newer"
#endif
