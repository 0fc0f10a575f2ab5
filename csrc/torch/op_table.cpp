#include "torch/op_table.h"

#include <ATen/core/enum_tag.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "torch/call.h"
#include "torch/device.h"

namespace accel {
namespace {

using c10::DispatchKey;
using std::string_view;

bool one_of(string_view name, std::initializer_list<string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Arguments that torch's device kernels accept on the CPU whatever their size.
bool host_argument(string_view op, string_view argument) {
  if (one_of(argument, {"lengths", "input_lengths", "target_lengths", "batch_sizes"})) return true;
  if (one_of(argument, {"nested_size", "nested_strides", "offsets"})) return op.starts_with("aten::_nested_");
  if (argument == "qtensor") return true;  // a template for the quantiser only
  if (argument == "scalars") return op.starts_with("aten::_foreach_");
  return argument == "indices" &&
         one_of(op, {"aten::index", "aten::index_put", "aten::index_put_", "aten::_unsafe_index",
                     "aten::_unsafe_index_put", "aten::_index_put_impl_", "aten::_index_put_impl"});
}

// Operators whose composite kernel is right as it is, although they are not views.
//   is_pinned, _pin_memory  ask about host memory, which an alias on a host key would pretend to have
//   _lazy_clone             would make the *native* storage copy-on-write behind the cell's back: structural.cpp copies
//   resize, resize_as_      end in resize_, which is structural
//   _unsafe_view, ...       views in all but their schema
bool keep_composite(string_view op) {
  return one_of(op, {"aten::is_pinned", "aten::_pin_memory", "aten::resize", "aten::resize_as", "aten::resize_as_",
                     "aten::_has_same_storage_numel", "aten::detach_", "aten::lift", "aten::_unsafe_view",
                     "aten::unsafe_split", "aten::unsafe_split_with_sizes"});
}

bool is_view(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

bool has_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
}

bool wants_kernel(const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(DispatchKey::PrivateUse1)) return false;  // structural.cpp and its like
  // A few composite operators have a kernel of their own as well, which a native device takes. Binding one also takes
  // its gradient from a backward operator, so the kernel must be there on every kind of device, and the CPU has the
  // fewest.
  const bool on_cpu = op.hasKernelForDispatchKey(DispatchKey::CPU);
  if (op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) return on_cpu;
  if (!has_composite(op)) return true;
  const auto& schema = op.schema();
  if (is_view(schema) || keep_composite(schema.name())) return false;
  if (op.hasTag(at::Tag::inplace_view)) return false;
  // Composite random factories end in uniform_, normal_ and random_, which take the device's own generator.
  return on_cpu || op.hasKernelForDispatchKey(DispatchKey::CUDA) || !op.hasTag(at::Tag::nondeterministic_seeded);
}

std::optional<ArgSlot::Kind> slot_kind(const c10::Argument& argument) {
  using Kind = ArgSlot::Kind;
  const auto& type = argument.type();
  const auto inner =
      type->kind() == c10::TypeKind::OptionalType ? type->castRaw<c10::OptionalType>()->getElementType() : type;
  switch (inner->kind()) {
    case c10::TypeKind::TensorType:
      return Kind::tensor;
    case c10::TypeKind::GeneratorType:
      return Kind::generator;
    case c10::TypeKind::DeviceObjType:
      return Kind::device;
    case c10::TypeKind::StreamObjType:
      return Kind::stream;
    case c10::TypeKind::BoolType:
      if (argument.name() == "pin_memory") return Kind::pin_memory;
      return std::nullopt;
    case c10::TypeKind::ListType: {
      const auto element = inner->castRaw<c10::ListType>()->getElementType();
      if (element->kind() == c10::TypeKind::TensorType) return Kind::tensor_list;
      if (element->kind() == c10::TypeKind::OptionalType &&
          element->castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::TensorType) {
        return Kind::optional_tensor_list;
      }
      return std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

std::mutex entries_mutex;
auto& entries() {
  static auto* map = new std::unordered_map<c10::OperatorName, OpEntry*>();
  return *map;
}

struct Kernel final : c10::OperatorKernel {
  explicit Kernel(c10::DispatchKey functionality) : functionality(functionality) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    // Made at the first call: import would pay for thousands of schemas that no program uses.
    OpEntry* known = entry.load(std::memory_order_acquire);
    if (C10_UNLIKELY(known == nullptr)) entry.store(known = &op_entry(op), std::memory_order_release);
    accel_entry(op, *known, functionality, stack);
  }
  std::atomic<OpEntry*> entry{nullptr};
  c10::DispatchKey functionality;
};

// Operators outside aten (custom ones, torchvision's): no walk can know them, so they arrive by the backend fallback.
template <c10::DispatchKey functionality>
void unbound(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  accel_entry(op, op_entry(op), functionality, stack);
}

auto& bound() {
  static auto* names = new std::unordered_set<c10::OperatorName>();
  return *names;
}

// Straight to the dispatcher: torch::Library would parse each name and format a source location again.
void bind(const c10::OperatorName& name, DispatchKey key, DispatchKey functionality) {
  // leaks-on-purpose: the registrations last as long as the process
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>();
  if (key == DispatchKey::PrivateUse1) bound().insert(name);
  handles->push_back(c10::Dispatcher::singleton().registerImpl(
      name, key, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(functionality)), std::nullopt,
      nullptr, "torch_accel"));
}

c10::OperatorHandle find_op(const std::string& name) {
  const auto dot = name.find('.');
  const auto op = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? std::string() : name.substr(dot + 1)});
  TORCH_CHECK_VALUE(op.has_value(), "torch_accel: operator policy: expected an operator such as aten::add.Tensor, got ",
                    name);
  return *op;
}

}  // namespace

OpEntry::OpEntry(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  arguments = static_cast<uint16_t>(schema.arguments().size());
  returns = static_cast<uint16_t>(schema.returns().size());
  view = is_view(schema);
  crosses = one_of(schema.name(), {"aten::copy_", "aten::copy", "aten::_to_copy", "aten::_foreach_copy_",
                                   "aten::_foreach_copy", "aten::_copy_from", "aten::_copy_from_and_resize"});
  // A kernel written in Python may leave its own object attached to an alias.
  reuses = schema.name().starts_with("aten::");
  bool generator = false;
  for (uint16_t i = 0; i < arguments; ++i) {
    const auto& argument = schema.arguments()[i];
    const auto kind = slot_kind(argument);
    if (!kind) continue;
    ArgSlot slot{i, *kind};
    // Batch statistics are written without the schema saying so.
    slot.written = (argument.alias_info() && argument.alias_info()->isWrite()) ||
                   one_of(argument.name(), {"running_mean", "running_var"});
    slot.host_ok = host_argument(schema.name(), argument.name());
    writes = writes || slot.written;
    generator = generator || *kind == ArgSlot::Kind::generator;
    if (*kind == ArgSlot::Kind::device) device_slot = static_cast<int16_t>(i);
    slots.push_back(slot);
  }
  seeded = op.hasTag(at::Tag::nondeterministic_seeded) && !generator;
  if (one_of(schema.name(), {"aten::_pack_padded_sequence"})) host_returns = 1 << 1;  // batch_sizes
  if (one_of(schema.name(),
             {"aten::_nested_tensor_size", "aten::_nested_tensor_strides", "aten::_nested_tensor_storage_offsets"})) {
    host_returns = 1 << 0;
  }
}

Policy OpEntry::decide(const c10::OperatorHandle& op, c10::DispatchKey key, bool host) {
  Policy decided;
  // What the host lacks, the CPU cannot do either: torch's own error says so best.
  if (host || op.hasComputedKernelForDispatchKey(key)) {
    decided = Policy::native;
  } else {
    decided = op.hasComputedKernelForDispatchKey(DispatchKey::CPU) && !view ? Policy::fallback : Policy::missing;
  }
  policy[host ? 0 : 1].store(decided, std::memory_order_relaxed);
  return decided;
}

void note_bound(const c10::OperatorName& name) { bound().insert(name); }

OpEntry& op_entry(const c10::OperatorHandle& op) {
  std::lock_guard<std::mutex> guard(entries_mutex);
  auto& entry = entries()[op.operator_name()];
  if (entry == nullptr) entry = new OpEntry(op);
  return *entry;
}

void bind_operators() {
  // leaks-on-purpose: as above
  static auto* others = new torch::Library(torch::Library::IMPL, "_", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!string_view(name.name).starts_with("aten::")) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    if (wants_kernel(*op)) bind(name, DispatchKey::PrivateUse1, DispatchKey::Dense);
    const auto bind_as = [&](DispatchKey accel, DispatchKey cpu, DispatchKey cuda, DispatchKey functionality) {
      if (op->hasKernelForDispatchKey(accel)) return;  // structural.cpp
      // The composite copy_ of quantized tensors ends in _copy_from, which knows strided ones only.
      const bool copy = name.name == "aten::copy_" && functionality == DispatchKey::Quantized;
      if (copy || op->hasKernelForDispatchKey(cpu) || op->hasKernelForDispatchKey(cuda))
        bind(name, accel, functionality);
    };
    bind_as(DispatchKey::SparsePrivateUse1, DispatchKey::SparseCPU, DispatchKey::SparseCUDA, DispatchKey::Sparse);
    bind_as(DispatchKey::SparseCsrPrivateUse1, DispatchKey::SparseCsrCPU, DispatchKey::SparseCsrCUDA,
            DispatchKey::SparseCsr);
    bind_as(DispatchKey::QuantizedPrivateUse1, DispatchKey::QuantizedCPU, DispatchKey::QuantizedCUDA,
            DispatchKey::Quantized);
    bind_as(DispatchKey::NestedTensorPrivateUse1, DispatchKey::NestedTensorCPU, DispatchKey::NestedTensorCUDA,
            DispatchKey::NestedTensor);
  }
  others->fallback(torch::CppFunction::makeFromBoxedFunction<&unbound<DispatchKey::Dense>>());
}

void set_op_policy(const std::string& name, const std::string& policy) {
  const auto op = find_op(name);
  TORCH_CHECK_VALUE(policy.empty() || policy == "native" || policy == "fallback",
                    "torch_accel: operator policy: expected native, fallback or \"\", got ", policy);
  auto& entry = op_entry(op);
  const bool tensors = std::any_of(entry.slots.begin(), entry.slots.end(), [](const ArgSlot& slot) {
    return slot.kind <= ArgSlot::Kind::optional_tensor_list;
  });
  const auto now = op_policy(name);
  TORCH_CHECK_VALUE(policy != "fallback" || (tensors && !entry.view && now != "structural" && now != "composite"),
                    "torch_accel: operator policy: expected an operator that may run on the CPU, got ", name,
                    " (views, factories and structural operators never fall back)");
  entry.forced = policy.empty() ? Policy::unknown : policy == "native" ? Policy::native : Policy::fallback;
}

std::string op_policy(const std::string& name) {
  const auto op = find_op(name);
  if (!op.hasKernelForDispatchKey(DispatchKey::PrivateUse1)) {
    if (has_composite(op) || op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) return "composite";
    if (!string_view(name).starts_with("aten::")) return "native";
    return "missing";
  }
  if (!bound().count(op.operator_name())) return "structural";
  const auto& native = native_device(current_device());
  switch (op_entry(op).policy_for(op, native.dense, native.host)) {
    case Policy::fallback:
      return "fallback";
    case Policy::missing:
      return "missing";
    default:
      return "native";
  }
}

}  // namespace accel
