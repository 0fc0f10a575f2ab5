// Autocast for accel, one boxed kernel per policy over torch's own operator lists (ATen/autocast_mode.h), so a list
// that changes with torch changes here too.
#include <ATen/autocast_mode.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <string>

#include "torch/device.h"

namespace accel {
namespace {

using at::ScalarType;
using at::autocast::cached_cast;
using c10::IValue;
using torch::jit::Stack;

enum class Cast : uint8_t { lower_precision, fp32, fp32_set_dtype, promote, fp32_append_dtype };

bool eligible(const at::Tensor& tensor) { return at::autocast::is_eligible(tensor, kAccel); }

template <typename F>
void for_each_tensor(const IValue& value, F visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) visit(tensor);
  }
}

void cast(IValue& value, ScalarType to) {
  if (value.isTensor()) {
    value = cached_cast(to, value.toTensor(), kAccel);
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorList()) tensors.push_back(cached_cast(to, tensor, kAccel));
    value = std::move(tensors);
  }
}

struct Kernel final : c10::OperatorKernel {
  Kernel(Cast policy, std::string redirect) : policy(policy), redirect(std::move(redirect)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKeySet(c10::DispatchKey::AutocastPrivateUse1));
    const auto& arguments = op.schema().arguments();
    const auto args = torch::jit::last(*stack, arguments.size());
    IValue* first = &(*stack)[stack->size() - args.size()];
    switch (policy) {
      case Cast::lower_precision:
        cast_all(first, args.size(), at::autocast::get_lower_precision_fp_from_device_type(kAccel));
        break;
      case Cast::fp32:
        cast_all(first, args.size(), at::kFloat);
        break;
      case Cast::promote: {
        auto to = at::autocast::get_lower_precision_fp_from_device_type(kAccel);
        for (size_t i = 0; i < args.size(); ++i) {
          for_each_tensor(first[i],
                          [&](const at::Tensor& tensor) { to = at::autocast::prioritize(to, tensor, kAccel); });
        }
        cast_all(first, args.size(), to);
        break;
      }
      case Cast::fp32_set_dtype:
        if (first[0].isTensor() && eligible(first[0].toTensor())) {
          for (size_t i = 0; i < args.size(); ++i) {
            if (arguments[i].name() == "dtype" && first[i].isNone()) first[i] = at::kFloat;
          }
        }
        break;
      case Cast::fp32_append_dtype:
        if (eligible(first[0].toTensor())) {
          stack->emplace_back(at::kFloat);
          c10::Dispatcher::singleton().findSchemaOrThrow("aten::norm", redirect.c_str()).callBoxed(stack);
          return;
        }
        break;
    }
    op.callBoxed(stack);
  }

  static void cast_all(IValue* args, size_t count, ScalarType to) {
    for (size_t i = 0; i < count; ++i) cast(args[i], to);
  }

  Cast policy;
  std::string redirect;
};

struct Name {
  const char* op;
  const char* overload;
};

// The lists name (op) or (op, overload).
#define ACCEL_NAME(op, ...) Name{#op, "" #__VA_ARGS__},
const Name lower_precision[] = {AT_FORALL_LOWER_PRECISION_FP(ACCEL_NAME)};
const Name fp32[] = {AT_FORALL_FP32(ACCEL_NAME)};
const Name fp32_set_dtype[] = {AT_FORALL_FP32_SET_OPT_DTYPE(ACCEL_NAME)};
const Name promote[] = {AT_FORALL_PROMOTE(ACCEL_NAME)};
#undef ACCEL_NAME

template <size_t n>
void bind(torch::Library& m, const Name (&names)[n], Cast policy) {
  for (const Name& name : names) {
    const std::string op = std::string(name.op) + (*name.overload ? std::string(".") + name.overload : "");
    m.impl(op.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(policy, "")));
  }
}

at::Tensor binary_cross_entropy_refused(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                        int64_t) {
  TORCH_CHECK(
      false,
      "torch_accel: binary_cross_entropy: expected float32 outside autocast, got a call under autocast, where it is "
      "unsafe (use binary_cross_entropy_with_logits, or leave autocast for it)");
}

}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  bind(m, lower_precision, Cast::lower_precision);
  bind(m, fp32, Cast::fp32);
  bind(m, fp32_set_dtype, Cast::fp32_set_dtype);
  bind(m, promote, Cast::promote);
  for (const char* overload : {"Scalar", "ScalarOpt_dim"}) {
    const std::string redirect = std::string(overload) == "Scalar" ? "ScalarOpt_dtype" : "ScalarOpt_dim_dtype";
    m.impl((std::string("norm.") + overload).c_str(),
           torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(Cast::fp32_append_dtype, redirect)));
  }
  m.impl("binary_cross_entropy", binary_cross_entropy_refused);
}

}  // namespace accel
