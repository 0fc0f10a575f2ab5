// torch_accel._C: bindings, no logic.
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include "core/counters.h"
#include "core/device_table.h"
#include "torch/device.h"
#include "torch/fallback.h"
#include "torch/generator.h"
#include "torch/op_table.h"

namespace py = pybind11;

namespace accel {
namespace {

py::dict copies(const CopyCounter& counter) {
  py::dict out;
  out["count"] = counter.count.load();
  out["bytes"] = counter.bytes.load();
  return out;
}

py::dict counters() {
  py::dict fallbacks, out, moved;
  for (const auto& [op, counter] : Counters::instance().fallbacks()) {
    py::dict one;
    one["count"] = counter.count;
    one["bytes"] = counter.bytes;
    one["sources"] = py::cast(counter.sources);
    fallbacks[py::str(op)] = one;
  }
  moved["host_to_device"] = copies(Counters::instance().host_to_device);
  moved["device_to_host"] = copies(Counters::instance().device_to_host);
  moved["device_to_device"] = copies(Counters::instance().device_to_device);
  out["fallbacks"] = fallbacks;
  out["copies"] = moved;
  return out;
}

Fallback parse_policy(const std::string& policy) {
  if (policy == "warn") return Fallback::warn;
  if (policy == "allow") return Fallback::allow;
  if (policy == "error") return Fallback::error;
  throw py::value_error("torch_accel: fallback: expected warn, allow or error, got " + policy);
}

const char* policy_name(Fallback policy) {
  return policy == Fallback::warn ? "warn" : policy == Fallback::allow ? "allow" : "error";
}

std::vector<DeviceEntry> resolve(const py::object& resolver) {
  std::vector<DeviceEntry> entries;
  py::gil_scoped_acquire gil;
  for (const py::handle item : resolver()) {
    entries.push_back({item["backend"].cast<std::string>(), item["route"].cast<std::string>(),
                       item["key"].cast<std::string>(), item["index"].cast<int>()});
  }
  return entries;
}

py::dict device_info(int index) {
  const auto& entries = DeviceTable::instance().entries();
  if (index < 0 || static_cast<size_t>(index) >= entries.size()) {
    throw py::index_error("torch_accel: device: expected an index below " + std::to_string(entries.size()) + ", got " +
                          std::to_string(index));
  }
  py::dict out;
  out["backend"] = entries[index].backend;
  out["route"] = entries[index].route;
  out["key"] = entries[index].key;
  out["index"] = entries[index].index;
  return out;
}

py::tuple triple(const c10::Stream& stream) {
  return py::make_tuple(stream.id(), static_cast<int>(stream.device_index()), static_cast<int>(stream.device_type()));
}

const c10::impl::DeviceGuardImplInterface& guard() { return *c10::impl::getDeviceGuardImpl(kAccel); }
c10::Device device(int index) { return {kAccel, static_cast<c10::DeviceIndex>(index)}; }

PYBIND11_MODULE(_C, m) {
  m.attr("torch_version") = TORCH_VERSION;
  // leaks-on-purpose: Python objects held by C++ must not be released after the interpreter
  m.def("set_resolver", [](const py::object& resolver) {
    auto* held = new py::object(resolver);
    DeviceTable::instance().set_resolver([held] { return resolve(*held); });
  });
  m.def("device_count", [] { return DeviceTable::instance().entries().size(); });
  m.def("is_resolved", [] { return DeviceTable::instance().resolved(); });
  m.def("device_info", &device_info);
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def("set_device", [](int index) { exchange_device(device(index).index()); });
  m.def("exchange_device", [](int index) { return static_cast<int>(exchange_device(device(index).index())); });
  m.def(
      "synchronize", [](int index) { guard().synchronizeDevice(device(index).index()); },
      py::call_guard<py::gil_scoped_release>());
  m.def("initialize", &first_use);
  m.def("is_initialized", [] { return DeviceTable::ready(); });
  m.def("is_bad_fork", [] { return DeviceTable::instance().bad_fork(); });

  m.def("default_generator", [](int index) {
    return py::reinterpret_steal<py::object>(
        THPGenerator_Wrap(default_generator(static_cast<c10::DeviceIndex>(index))));
  });
  m.def("default_stream", [](int index) { return triple(guard().getDefaultStream(device(index))); });
  m.def("stream_from_pool",
        [](int index, int priority) { return triple(guard().getNewStream(device(index), priority)); });

  m.def("set_fallback", [](const std::string& policy) { set_fallback_policy(parse_policy(policy)); });
  m.def("set_fallback_thread", [](const std::optional<std::string>& policy) {
    set_thread_fallback_policy(policy ? std::make_optional(parse_policy(*policy)) : std::nullopt);
  });
  m.def("get_fallback", [] { return policy_name(fallback_policy()); });
  m.def("counters", &counters);
  m.def("reset_counters", [] { Counters::instance().reset(); });
  m.def("set_source_hook", [](const py::object& hook) {
    auto* held = new py::object(hook);
    set_source_hook([held] {
      py::gil_scoped_acquire gil;
      return (*held)().cast<std::string>();
    });
  });
  m.def("set_op_policy", &set_op_policy);
  m.def("op_policy", &op_policy);

  bind_operators();
}

}  // namespace
}  // namespace accel
