// The operators that programs call most, without boxing their arguments.
//
// Same mechanism as the boxed kernel (call.h), and the boxed kernel takes over whenever a call is not the plain one:
// another policy, no operand on accel. What is saved is the stack of boxed values, a third of the route's cost: an
// operator is worth a line below when it is called often on small tensors.
#include <ATen/core/stack.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/zero_ops.h>
#include <torch/library.h>

#include "torch/call.h"

namespace accel {
namespace {

using at::Tensor;

struct Site {
  Site(const char* name, const char* overload)
      : op(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload)), entry(op_entry(op)) {}
  const ArgSlot& slot(uint16_t argument) const {
    const ArgSlot* slot = entry.slots.begin();
    while (slot->index != argument) ++slot;
    return *slot;
  }
  c10::OperatorHandle op;
  OpEntry& entry;
};

// What a call does with an argument of each type: operands are located and translated, all others pass.
inline bool locate(Call& call, const Tensor& tensor) { return call.locate(tensor); }
inline bool locate(Call& call, const std::optional<Tensor>& tensor) { return tensor && call.locate(*tensor); }
template <typename T>
bool locate(Call&, const T&) {
  return false;
}

inline Tensor enter(Call& call, const Site& site, uint16_t index, const Tensor& tensor) {
  return call.enter(tensor, site.slot(index));
}
inline std::optional<Tensor> enter(Call& call, const Site& site, uint16_t index, const std::optional<Tensor>& tensor) {
  return tensor ? std::make_optional(call.enter(*tensor, site.slot(index))) : std::nullopt;
}
template <typename T>
const T& enter(Call&, const Site&, uint16_t, const T& value) {
  return value;
}

inline Tensor leave(Call& call, Tensor result) { return call.leave(std::move(result)); }
template <typename... T>
std::tuple<T...> leave(Call& call, std::tuple<T...> results) {
  return std::apply([&](auto&... result) { return std::tuple<T...>(call.leave(std::move(result))...); }, results);
}

template <typename T>
T unbox(torch::jit::Stack& stack, T*) {
  return std::move(stack[0]).to<T>();
}
template <typename... T>
std::tuple<T...> unbox(torch::jit::Stack& stack, std::tuple<T...>*) {
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return std::tuple<T...>(std::move(stack[I]).template to<T>()...);
  }(std::index_sequence_for<T...>());
}

template <typename Op, typename Schema = typename Op::schema>
struct Unboxed;

template <typename Op, typename Result, typename... Args>
struct Unboxed<Op, Result(Args...)> {
  static Result call(Args... args) { return run(std::index_sequence_for<Args...>(), args...); }

  template <size_t... I>
  static Result run(std::index_sequence<I...>, Args... args) {
    static const Site site(Op::name, Op::overload_name);
    ensure_ready();
    c10::impl::ExcludeDispatchKeyGuard below_autograd(kAbove);
    Call call(site.op, site.entry);
    const bool located = (locate(call, args) || ...);
    if (C10_UNLIKELY(!located ||
                     site.entry.policy_for(site.op, call.native().dense, call.native().host) != Policy::native)) {
      torch::jit::Stack stack;
      torch::jit::push(stack, args...);
      accel_entry(site.op, site.entry, c10::DispatchKey::Dense, &stack);
      if constexpr (std::is_reference_v<Result>) {
        return first(args...);
      } else {
        return unbox(stack, static_cast<Result*>(nullptr));
      }
    }
    const c10::DispatchKeySet native(call.native().dense);
    if constexpr (std::is_reference_v<Result>) {
      Tensor self = enter(call, site, 0, first(args...));
      redispatch_in_place(native, call, site, self, std::index_sequence<I...>(), args...);
      call.finish();
      return first(args...);
    } else {
      Result result = Op::redispatch(native, enter(call, site, I, args)...);
      call.finish();
      return leave(call, std::move(result));
    }
  }

  template <size_t zero, size_t... I, typename... Rest>
  static void redispatch_in_place(c10::DispatchKeySet native, Call& call, const Site& site, Tensor& self,
                                  std::index_sequence<zero, I...>, Tensor&, const Rest&... rest) {
    Op::redispatch(native, self, enter(call, site, I, rest)...);
  }
  template <typename... Rest>
  static Tensor& first(Tensor& self, const Rest&...) {
    return self;
  }
};

template <typename Op>
void bind(torch::Library& m) {
  const std::string overload = Op::overload_name;
  const std::string name = std::string(Op::name) + (overload.empty() ? "" : "." + overload);
  m.impl(name.c_str(), TORCH_FN((Unboxed<Op>::call)));
  note_bound({Op::name, overload});
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  bind<at::_ops::add_Tensor>(m);
  bind<at::_ops::add__Tensor>(m);
  bind<at::_ops::sub_Tensor>(m);
  bind<at::_ops::sub__Tensor>(m);
  bind<at::_ops::mul_Tensor>(m);
  bind<at::_ops::mul__Tensor>(m);
  bind<at::_ops::div_Tensor>(m);
  bind<at::_ops::div__Tensor>(m);
  bind<at::_ops::neg>(m);
  bind<at::_ops::mm>(m);
  bind<at::_ops::bmm>(m);
  bind<at::_ops::addmm>(m);
  bind<at::_ops::relu>(m);
  bind<at::_ops::gelu>(m);
  bind<at::_ops::gelu_backward>(m);
  bind<at::_ops::silu>(m);
  bind<at::_ops::sigmoid>(m);
  bind<at::_ops::tanh>(m);
  bind<at::_ops::threshold_backward>(m);
  bind<at::_ops::_softmax>(m);
  bind<at::_ops::_softmax_backward_data>(m);
  bind<at::_ops::native_layer_norm>(m);
  bind<at::_ops::sum_dim_IntList>(m);
  bind<at::_ops::zero_>(m);
}

}  // namespace
}  // namespace accel
