// torch_accel._core_test: csrc/core as the tests see it, without torch. Not part of a release.
//
// Ownership: each Python object holds one reference to its C++ object. Client.close() gives up the module's reference
// to the backend; buffers and executables stay usable, as the interface promises. Threads: every call that may wait
// gives up the GIL first, since callbacks of a plugin's threads may want it.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/backend.h"
#include "core/pjrt_backend.h"

namespace py = pybind11;
using namespace accel;

namespace {

py::object status_error;  // class StatusError(RuntimeError): .code is the name of the code

[[noreturn]] void raise(const Status& status) {
  py::object error = status_error(status.message);
  error.attr("code") = code_name(status.code);
  PyErr_SetObject(status_error.ptr(), error.ptr());
  throw py::error_already_set();
}
void check(const Status& status) {
  if (!status.ok()) raise(status);
}
template <class T>
T check(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return std::move(*result);
}
// Runs without the GIL.
template <class Function>
auto unlocked(Function function) {
  py::gil_scoped_release release;
  return function();
}

const DtypeInfo& dtype_named(const std::string& name) {
  const DtypeInfo* info = find_dtype(name);
  if (!info) throw py::value_error("no such dtype: " + name);
  return *info;
}

void keep_alive_until_called(py::object object, std::function<void()>& released) {
  released = [held = object.release().ptr()] {
    py::gil_scoped_acquire acquire;
    Py_DECREF(held);
  };
}

// An array or anything else with a dense buffer. `dtype` and `dims` say what it holds, where numpy has no such type.
BufferPtr to_device(Device& device, py::object data, std::optional<std::string> dtype,
                    std::optional<std::vector<int64_t>> dims, HostData use) {
  py::buffer_info view = py::reinterpret_borrow<py::buffer>(data).request();
  py::ssize_t dense = view.itemsize;
  for (auto i = view.ndim; i-- > 0; dense *= view.shape[i])
    if (view.size && view.shape[i] != 1 && view.strides[i] != dense)
      throw py::value_error("the array must be C-contiguous");
  TensorSpec spec;
  if (!dtype) dtype = py::str(py::dtype(view).attr("name")).cast<std::string>();
  spec.dtype = dtype_named(*dtype).id;
  spec.dims = dims ? *dims : std::vector<int64_t>(view.shape.begin(), view.shape.end());
  if (spec.bytes() != static_cast<size_t>(view.size * view.itemsize)) throw py::value_error("dims do not fit the data");
  std::function<void()> released;
  if (use != HostData::during_call) keep_alive_until_called(data, released);
  const void* host = view.size ? view.ptr : nullptr;
  return check(unlocked([&] { return device.from_host(host, spec, use, released); }));
}

py::bytes to_host(Buffer& buffer) {
  std::string bytes(buffer.spec().bytes(), '\0');
  check(unlocked([&]() -> Status {
    Result<EventPtr> event = buffer.to_host(bytes.data(), bytes.size());
    return event.ok() ? (*event)->await() : event.status();
  }));
  return py::bytes(bytes);
}

py::object to_numpy(const BufferPtr& buffer) {
  py::object numpy = py::module_::import("numpy");
  const TensorSpec& spec = buffer->spec();
  return numpy.attr("frombuffer")(to_host(*buffer), py::arg("dtype") = find_dtype(spec.dtype)->name)
      .attr("reshape")(spec.dims);
}

class Client {
 public:
  explicit Client(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {}
  ~Client() {
    py::gil_scoped_release release;
    backend_.reset();
  }
  void close() {
    py::gil_scoped_release release;
    backend_.reset();
  }
  Backend& get() const {
    if (!backend_) throw py::value_error("the client is closed");
    return *backend_;
  }
  Device& device(int index) const {
    auto devices = get().devices();
    if (index < 0 || index >= static_cast<int>(devices.size())) throw py::index_error("no such device");
    return *devices[index];
  }

 private:
  std::shared_ptr<Backend> backend_;
};

PjrtOptions options_of(const py::dict& values) {
  PjrtOptions options;
  // By hand: a cast to the variant would take True for 1.
  for (auto [key, value] : values) {
    PjrtValue& to = options.emplace_back(key.cast<std::string>(), PjrtValue()).second;
    if (py::isinstance<py::bool_>(value))
      to = value.cast<bool>();
    else if (py::isinstance<py::int_>(value))
      to = value.cast<int64_t>();
    else if (py::isinstance<py::float_>(value))
      to = value.cast<float>();
    else if (py::isinstance<py::str>(value))
      to = value.cast<std::string>();
    else
      to = value.cast<std::vector<int64_t>>();
  }
  return options;
}

py::tuple execute(const std::shared_ptr<Executable>& executable, Device* device, const py::sequence& arguments,
                  const std::vector<int64_t>& keep) {
  std::vector<BufferPtr> buffers;
  for (py::handle argument : arguments) {
    if (py::isinstance<Buffer>(argument))
      buffers.push_back(argument.cast<BufferPtr>());
    else if (argument.is_none())
      buffers.push_back(nullptr);
    else
      buffers.push_back(
          to_device(*device, py::reinterpret_borrow<py::object>(argument), {}, {}, HostData::during_call));
  }
  Execution execution = check(unlocked([&] { return executable->execute(buffers, keep); }));
  unlocked([&] { return buffers.clear(), 0; });
  return py::make_tuple(execution.outputs, execution.done);
}

// An executable and the device whose from_host serves arguments that are arrays.
struct Loaded {
  ExecutablePtr executable;
  DevicePtr device;
};

}  // namespace

PYBIND11_MODULE(_core_test, m) {
  status_error = py::reinterpret_borrow<py::object>(
      PyErr_NewException("torch_accel._core_test.StatusError", PyExc_RuntimeError, nullptr));
  m.attr("StatusError") = status_error;

  py::list table;
  for (const DtypeInfo& info : dtypes)
    table.append(py::make_tuple(info.name, static_cast<int>(info.id), info.stablehlo, info.bytes));
  m.attr("DTYPES") = table;  // (torch's name, torch's number, StableHLO's name, bytes of an element on the host)

  py::enum_<HostData>(m, "HostData")
      .value("during_call", HostData::during_call)
      .value("until_released", HostData::until_released)
      .value("zero_copy", HostData::zero_copy);

  py::class_<Event, EventPtr>(m, "Event")
      .def("ready", [](Event& event) { return check(event.ready()); })
      .def("wait", [](Event& event) { check(unlocked([&] { return event.await(); })); })
      .def("on_ready", [](Event& event, py::function callback) {
        // callback(code, message), on some thread
        unlocked([&, held = callback.release().ptr()] {
          event.on_ready([held](const Status& status) {
            py::gil_scoped_acquire acquire;
            auto function = py::reinterpret_steal<py::function>(held);
            function(code_name(status.code), status.message);
          });
          return 0;
        });
      });

  py::class_<Buffer, BufferPtr>(m, "Buffer")
      .def_property_readonly("dtype", [](Buffer& buffer) { return find_dtype(buffer.spec().dtype)->name; })
      .def_property_readonly("dims", [](Buffer& buffer) { return py::tuple(py::cast(buffer.spec().dims)); })
      .def_property_readonly("device", &Buffer::device)
      .def("ready_event", [](Buffer& buffer) { return check(buffer.ready_event()); })
      .def("to_host", &to_host)
      .def("start_to_host",  // (bytearray of the right size) -> Event
           [](Buffer& buffer, py::buffer to) {
             py::buffer_info view = to.request(true);
             return check(buffer.to_host(view.ptr, static_cast<size_t>(view.size * view.itemsize)));
           })
      .def("numpy", &to_numpy)
      .def(
          "__array__", [](const BufferPtr& buffer, py::object, py::object) { return to_numpy(buffer); },
          py::arg("dtype") = py::none(), py::arg("copy") = py::none())
      .def("release", [](Buffer& buffer) { check(unlocked([&] { return buffer.release(); })); })
      .def("deleted", &Buffer::deleted)
      .def("address", [](Buffer& buffer) { return check(buffer.address()); });

  py::class_<Loaded>(m, "Executable")
      .def(
          "execute",  // arguments: Buffers or arrays; keep: indices that are not donated -> list of Buffers
          [](Loaded& self, py::sequence arguments, const std::vector<int64_t>& keep) -> py::object {
            return execute(self.executable, self.device.get(), arguments, keep)[0];
          },
          py::arg("arguments"), py::arg("keep") = std::vector<int64_t>())
      .def(
          "start",  // the same -> (list of Buffers, Event)
          [](Loaded& self, py::sequence arguments, const std::vector<int64_t>& keep) {
            return execute(self.executable, self.device.get(), arguments, keep);
          },
          py::arg("arguments"), py::arg("keep") = std::vector<int64_t>())
      .def_property_readonly(
          "outputs",
          [](Loaded& self) {
            py::list outputs;
            for (const TensorSpec& spec : self.executable->outputs())
              outputs.append(py::make_tuple(find_dtype(spec.dtype)->name, py::tuple(py::cast(spec.dims))));
            return outputs;
          })
      .def("serialize", [](Loaded& self) { return py::bytes(check(self.executable->serialize())); })
      .def("memory", [](Loaded& self) {
        ExecutableMemory memory = check(self.executable->memory());
        return py::dict(py::arg("code") = memory.code, py::arg("arguments") = memory.arguments,
                        py::arg("outputs") = memory.outputs, py::arg("aliased") = memory.aliased,
                        py::arg("temporary") = memory.temporary);
      });

  py::class_<Client>(m, "Client")
      .def("close", &Client::close)
      .def_property_readonly("platform", [](Client& self) { return self.get().platform(); })
      .def_property_readonly("version", [](Client& self) { return self.get().version(); })
      .def_property_readonly("fingerprint", [](Client& self) { return self.get().fingerprint(); })
      .def_property_readonly("devices",  // kinds
                             [](Client& self) {
                               std::vector<std::string> kinds;
                               for (const DevicePtr& device : self.get().devices()) kinds.push_back(device->kind());
                               return kinds;
                             })
      .def(
          "memory_stats",
          [](Client& self, int device) {
            DeviceMemory memory = check(self.device(device).memory());
            return py::dict(
                py::arg("bytes_in_use") = memory.bytes_in_use, py::arg("peak_bytes_in_use") = memory.peak_bytes_in_use,
                py::arg("bytes_limit") = memory.bytes_limit, py::arg("bytes_reserved") = memory.bytes_reserved,
                py::arg("pool_bytes") = memory.pool_bytes, py::arg("largest_alloc_bytes") = memory.largest_alloc_bytes,
                py::arg("allocs") = memory.allocs);
          },
          py::arg("device") = 0)
      .def(
          "to_device",
          [](Client& self, py::object data, int device, std::optional<std::string> dtype,
             std::optional<std::vector<int64_t>> dims,
             HostData use) { return to_device(self.device(device), data, dtype, dims, use); },
          py::arg("data"), py::arg("device") = 0, py::arg("dtype") = py::none(), py::arg("dims") = py::none(),
          py::arg("use") = HostData::during_call)
      .def("copy_to",
           [](Client& self, Buffer& buffer, int device) {
             Device& target = self.device(device);
             return check(unlocked([&] { return target.from_device(buffer); }));
           })
      .def(
          "compile",
          [](Client& self, const std::string& text, int device, const py::bytes& options) {
            std::string bytes = options;
            Device& target = self.device(device);
            return Loaded{check(unlocked([&] { return target.compile(text, bytes); })), self.get().devices()[device]};
          },
          py::arg("text"), py::arg("device") = 0, py::arg("options") = py::bytes())
      .def(
          "load",
          [](Client& self, const py::bytes& data, int device) {
            std::string bytes = data;
            Device& target = self.device(device);
            return Loaded{check(unlocked([&] { return target.load(bytes); })), self.get().devices()[device]};
          },
          py::arg("data"), py::arg("device") = 0);

  m.def(
      "open",  // options: create options, by name; values are str, bool, int, float or a list of int
      [](const std::string& path, const py::dict& options) {
        PjrtOptions values = options_of(options);
        return std::make_unique<Client>(check(unlocked([&] { return open_pjrt(path, values); })));
      },
      py::arg("path"), py::arg("options") = py::dict());
  m.def("api_minor", [](const std::string& path) { return check(unlocked([&] { return pjrt_api_minor(path); })); });
  m.def("compile_option", [](const std::string& name, py::object value) {
    py::dict one;
    one[py::str(name)] = value;
    return py::bytes(check(pjrt_compile_option(name, options_of(one)[0].second)));
  });
}
