#include "core/pjrt_backend.h"

#ifndef ACCEL_HAVE_PJRT

namespace accel {

static Status no_header(const std::string& call) {
  return {Code::unimplemented, "torch_accel: " + call +
                                   ": expected a build with PJRT, got one without pjrt_c_api.h"
                                   " (pip install xla-cpu-pjrt, which contains the header, and build again)"};
}
Result<std::shared_ptr<Backend>> open_pjrt(const std::string& path, const PjrtOptions&) {
  return no_header("open PJRT plugin " + path);
}
Result<int> pjrt_api_minor(const std::string& path) { return no_header("open PJRT plugin " + path); }
Result<std::string> pjrt_compile_option(std::string_view, const PjrtValue&) { return no_header("compile option"); }

}  // namespace accel

#else

#include <dlfcn.h>
#include <pjrt_c_api.h>
#include <sys/stat.h>

#include <atomic>
#include <climits>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>
#include <type_traits>

namespace accel {
namespace {

// Fields of PJRT_Api were moved by 0.57, without a new major version.
constexpr int kMinMinor = 58;

static_assert([] {
  for (auto [ours, theirs] : {std::pair{Dtype::pred, PJRT_Buffer_Type_PRED},
                              {Dtype::s4, PJRT_Buffer_Type_S4},
                              {Dtype::s8, PJRT_Buffer_Type_S8},
                              {Dtype::s16, PJRT_Buffer_Type_S16},
                              {Dtype::s32, PJRT_Buffer_Type_S32},
                              {Dtype::s64, PJRT_Buffer_Type_S64},
                              {Dtype::u4, PJRT_Buffer_Type_U4},
                              {Dtype::u8, PJRT_Buffer_Type_U8},
                              {Dtype::u16, PJRT_Buffer_Type_U16},
                              {Dtype::u32, PJRT_Buffer_Type_U32},
                              {Dtype::u64, PJRT_Buffer_Type_U64},
                              {Dtype::f16, PJRT_Buffer_Type_F16},
                              {Dtype::bf16, PJRT_Buffer_Type_BF16},
                              {Dtype::f32, PJRT_Buffer_Type_F32},
                              {Dtype::f64, PJRT_Buffer_Type_F64},
                              {Dtype::c64, PJRT_Buffer_Type_C64},
                              {Dtype::c128, PJRT_Buffer_Type_C128},
                              {Dtype::f8e5m2, PJRT_Buffer_Type_F8E5M2},
                              {Dtype::f8e4m3fn, PJRT_Buffer_Type_F8E4M3FN},
                              {Dtype::f8e5m2fnuz, PJRT_Buffer_Type_F8E5M2FNUZ},
                              {Dtype::f8e4m3fnuz, PJRT_Buffer_Type_F8E4M3FNUZ},
                              {Dtype::f8e8m0fnu, PJRT_Buffer_Type_F8E8M0FNU}})
    if (find_dtype(ours)->pjrt != theirs) return false;
  return true;
}());

#define RETURN_IF_ERROR(expression) \
  if (Status status_ = (expression); !status_.ok()) return status_
// Declares `args` for the PJRT function `name`.
#define ARGS(name)    \
  name##_Args args{}; \
  args.struct_size = name##_Args_STRUCT_SIZE
#define CALL(library, name) (library)->call(&PJRT_Api::name, #name, args)

Status failure(Code code, const std::string& call, const std::string& expected, const std::string& got,
               const std::string& what_to_do) {
  return {code, "torch_accel: " + call + ": expected " + expected + ", got " + got + " (" + what_to_do + ")"};
}

// ---------------------------------------------------------------------------------------------------------- library

// A plugin's table of functions. Lives for ever.
class Library {
 public:
  // The same Library for the same file.
  static Result<Library*> open(const std::string& path);

  const std::string& path() const { return path_; }
  int minor() const { return api_->pjrt_api_version.minor_version; }

  Status initialize() {
    std::call_once(once_, [this] {
      ARGS(PJRT_Plugin_Initialize);
      initialized_ = CALL(this, PJRT_Plugin_Initialize);
    });
    return initialized_;
  }

  // `member`: the function's place in the table.
  template <class Function, class Args>
  Status call(Function* PJRT_Api::* member, const char* name, Args& args) const {
    Function* function = find(member);
    if (!function)
      return failure(Code::unimplemented, name, "a plugin that has this function", "none in " + describe(),
                     "use a newer plugin");
    if constexpr (std::is_void_v<decltype(function(&args))>) {
      function(&args);
      return {};
    } else {
      return take(function(&args), name);
    }
  }

  // Frees the error.
  Status take(PJRT_Error* error, const char* name) const {
    if (!error) return {};
    Status status{Code::unknown, {}};
    {
      ARGS(PJRT_Error_GetCode);
      args.error = error;
      // An error from here has nowhere to go; freeing it is all that can be done.
      if (PJRT_Error* nested = api_->PJRT_Error_GetCode(&args))
        destroy(nested);
      else if (args.code != PJRT_Error_Code_OK)
        status.code = static_cast<Code>(args.code);
    }
    ARGS(PJRT_Error_Message);
    args.error = error;
    api_->PJRT_Error_Message(&args);
    status.message = std::string(name) + ": " + std::string(args.message, args.message_size);
    destroy(error);
    return status;
  }

 private:
  Library(std::string path, const PJRT_Api* api) : path_(std::move(path)), api_(api) {}

  template <class Function>
  Function* find(Function* PJRT_Api::* member) const {
    auto offset = reinterpret_cast<const char*>(&(api_->*member)) - reinterpret_cast<const char*>(api_);
    return static_cast<size_t>(offset) + sizeof(Function*) <= api_->struct_size ? api_->*member : nullptr;
  }
  std::string describe() const { return path_ + " with PJRT 0." + std::to_string(minor()); }
  void destroy(PJRT_Error* error) const {
    ARGS(PJRT_Error_Destroy);
    args.error = error;
    api_->PJRT_Error_Destroy(&args);
  }

  std::string path_;
  const PJRT_Api* api_;
  std::once_flag once_;
  Status initialized_;
};

Result<Library*> Library::open(const std::string& path) {
  static auto* mutex = new std::mutex;  // never destroyed: exit may come while a thread opens a plugin
  static auto* libraries = new std::map<std::string, Library*>;
  const std::string call = "open PJRT plugin " + path;

  char real[PATH_MAX];
  if (!realpath(path.c_str(), real))
    return failure(Code::not_found, call, "a shared library", "no such file",
                   "install a plugin, such as: pip install xla-cpu-pjrt");
  std::lock_guard lock(*mutex);
  if (auto found = libraries->find(real); found != libraries->end()) return found->second;

  void* handle = dlopen(real, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* error = dlerror();
    return failure(Code::invalid_argument, call, "a shared library that loads", error ? error : "an unknown error",
                   "install the plugin again, built for this machine");
  }
  auto get_api = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(handle, "GetPjrtApi"));
  if (!get_api)
    return failure(Code::invalid_argument, call, "a PJRT plugin", "a library without the function GetPjrtApi",
                   "name the plugin's own file");
  const PJRT_Api* api = get_api();
  constexpr size_t kSmallest = PJRT_STRUCT_SIZE(PJRT_Api, PJRT_Error_GetCode);
  if (!api || api->struct_size < kSmallest)
    return failure(Code::failed_precondition, call,
                   "a table of PJRT functions of at least " + std::to_string(kSmallest) + " bytes",
                   api ? std::to_string(api->struct_size) + " bytes" : "none", "use a newer plugin");
  const PJRT_Api_Version& version = api->pjrt_api_version;
  if (version.major_version != PJRT_API_MAJOR || version.minor_version < kMinMinor)
    return failure(Code::failed_precondition, call,
                   "PJRT " + std::to_string(PJRT_API_MAJOR) + "." + std::to_string(kMinMinor) + " or newer",
                   std::to_string(version.major_version) + "." + std::to_string(version.minor_version),
                   version.major_version > PJRT_API_MAJOR ? "use a newer torch_accel" : "use a newer plugin");
  if (!api->PJRT_Error_Destroy || !api->PJRT_Error_Message || !api->PJRT_Error_GetCode)
    return failure(Code::failed_precondition, call, "functions for errors", "none", "use a newer plugin");
  return libraries->emplace(real, new Library(real, api)).first->second;
}

// ----------------------------------------------------------------------------------------------------------- events

// True in a thread that is in a callback of a plugin: there a client must not be destroyed, as that joins the thread.
thread_local bool in_callback = false;

class PjrtEvent final : public Event, public std::enable_shared_from_this<PjrtEvent> {
 public:
  PjrtEvent(Library* library, PJRT_Event* event) : library_(library), event_(event) {}
  ~PjrtEvent() override {
    ARGS(PJRT_Event_Destroy);
    args.event = event_;
    (void)CALL(library_, PJRT_Event_Destroy);
  }

  Result<bool> ready() override {
    ARGS(PJRT_Event_IsReady);
    args.event = event_;
    RETURN_IF_ERROR(CALL(library_, PJRT_Event_IsReady));
    return args.is_ready;
  }

  Status await() override {
    ARGS(PJRT_Event_Await);
    args.event = event_;
    return CALL(library_, PJRT_Event_Await);
  }

  void on_ready(std::function<void(const Status&)> callback) override {
    // The event stays until it has called back: not every plugin allows otherwise.
    auto* waiting = new Waiting{shared_from_this(), std::move(callback)};
    ARGS(PJRT_Event_OnReady);
    args.event = event_;
    args.user_arg = waiting;
    args.callback = [](PJRT_Error* error, void* context) {
      std::unique_ptr<Waiting> waiting(static_cast<Waiting*>(context));
      const bool outer = std::exchange(in_callback, true);
      waiting->callback(waiting->event->library_->take(error, "asynchronous result"));
      waiting.reset();
      in_callback = outer;
    };
    if (Status status = CALL(library_, PJRT_Event_OnReady); !status.ok()) {
      waiting->callback(status);
      delete waiting;
    }
  }

 private:
  struct Waiting {
    std::shared_ptr<PjrtEvent> event;
    std::function<void(const Status&)> callback;
  };

  Library* library_;
  PJRT_Event* event_;
};

// Counts executions whose callback has not come yet.
class InFlight {
 public:
  void start() { count_.fetch_add(1, std::memory_order_relaxed); }
  void finish() {
    // Under the lock, so that drain() does not return while notify is still to come.
    std::lock_guard lock(mutex_);
    if (count_.fetch_sub(1, std::memory_order_relaxed) == 1) none_.notify_all();
  }
  void drain() {
    std::unique_lock lock(mutex_);
    none_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  std::atomic<int> count_{0};
};

// ----------------------------------------------------------------------------------------------------------- client

struct Client {
  Library* library;
  PJRT_Client* client;
  std::shared_ptr<InFlight> in_flight = std::make_shared<InFlight>();

  Client(Library* library, PJRT_Client* client) : library(library), client(client) {}
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() {
    auto destroy = [library = library, client = client] {
      ARGS(PJRT_Client_Destroy);
      args.client = client;
      (void)CALL(library, PJRT_Client_Destroy);
    };
    if (in_callback)
      std::thread(destroy).detach();
    else
      destroy();
  }

  EventPtr event(PJRT_Event* event) const { return std::make_shared<PjrtEvent>(library, event); }
};
using ClientPtr = std::shared_ptr<Client>;

class PjrtBuffer final : public Buffer {
 public:
  PjrtBuffer(ClientPtr client, PJRT_Buffer* buffer, TensorSpec spec, int device)
      : Buffer(std::move(spec), device), client_(std::move(client)), buffer_(buffer) {}
  ~PjrtBuffer() override {
    ARGS(PJRT_Buffer_Destroy);
    args.buffer = buffer_;
    (void)CALL(client_->library, PJRT_Buffer_Destroy);
  }
  PJRT_Buffer* get() const { return buffer_; }
  const Client* client() const { return client_.get(); }

  Result<EventPtr> ready_event() override {
    ARGS(PJRT_Buffer_ReadyEvent);
    args.buffer = buffer_;
    RETURN_IF_ERROR(CALL(client_->library, PJRT_Buffer_ReadyEvent));
    return client_->event(args.event);
  }

  Result<EventPtr> to_host(void* to, size_t bytes) override {
    if (bytes != spec().bytes())
      return failure(Code::invalid_argument, "copy to host", std::to_string(spec().bytes()) + " bytes of room",
                     std::to_string(bytes), "give a buffer of the array's size");
    // Without a layout the device's own would come.
    std::vector<int64_t> minor_to_major(spec().dims.size());
    for (size_t i = 0; i < minor_to_major.size(); ++i)
      minor_to_major[i] = static_cast<int64_t>(minor_to_major.size() - 1 - i);
    PJRT_Buffer_MemoryLayout layout{};
    layout.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE;
    layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
    layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
    layout.tiled.minor_to_major = minor_to_major.data();
    layout.tiled.minor_to_major_size = minor_to_major.size();

    char nothing;  // a null destination asks for the size instead
    ARGS(PJRT_Buffer_ToHostBuffer);
    args.src = buffer_;
    args.host_layout = &layout;
    args.dst = bytes ? to : &nothing;
    args.dst_size = bytes;
    RETURN_IF_ERROR(CALL(client_->library, PJRT_Buffer_ToHostBuffer));
    EventPtr event = client_->event(args.event);
    if (!bytes) RETURN_IF_ERROR(event->await());  // `nothing` ends here
    return event;
  }

  Status release() override {
    ARGS(PJRT_Buffer_Delete);
    args.buffer = buffer_;
    return CALL(client_->library, PJRT_Buffer_Delete);
  }

  bool deleted() override {
    ARGS(PJRT_Buffer_IsDeleted);
    args.buffer = buffer_;
    return CALL(client_->library, PJRT_Buffer_IsDeleted).ok() && args.is_deleted;
  }

  Result<uintptr_t> address() override {
    ARGS(PJRT_Buffer_UnsafePointer);
    args.buffer = buffer_;
    RETURN_IF_ERROR(CALL(client_->library, PJRT_Buffer_UnsafePointer));
    return args.buffer_pointer;
  }

 private:
  ClientPtr client_;
  PJRT_Buffer* buffer_;
};

// ------------------------------------------------------------------------------------------------------- executables

// Owns both of PJRT's handles of one program.
struct Program {
  ClientPtr client;
  PJRT_LoadedExecutable* loaded;
  PJRT_Executable* executable = nullptr;

  Program(ClientPtr client, PJRT_LoadedExecutable* loaded) : client(std::move(client)), loaded(loaded) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (executable) {
      ARGS(PJRT_Executable_Destroy);
      args.executable = executable;
      (void)CALL(client->library, PJRT_Executable_Destroy);
    }
    ARGS(PJRT_LoadedExecutable_Destroy);
    args.executable = loaded;
    (void)CALL(client->library, PJRT_LoadedExecutable_Destroy);
  }
};

class PjrtExecutable final : public Executable {
 public:
  PjrtExecutable(std::unique_ptr<Program> program, std::vector<TensorSpec> outputs, int device)
      : Executable(std::move(outputs), device), program_(std::move(program)) {}

  // Takes `loaded`.
  static Result<ExecutablePtr> make(ClientPtr client, PJRT_LoadedExecutable* loaded, int device) {
    auto program = std::make_unique<Program>(client, loaded);
    Library* library = client->library;
    {
      ARGS(PJRT_LoadedExecutable_GetExecutable);
      args.loaded_executable = loaded;
      RETURN_IF_ERROR(CALL(library, PJRT_LoadedExecutable_GetExecutable));
      program->executable = args.executable;
    }
    std::vector<TensorSpec> outputs;
    {
      ARGS(PJRT_Executable_OutputElementTypes);
      args.executable = program->executable;
      RETURN_IF_ERROR(CALL(library, PJRT_Executable_OutputElementTypes));
      for (size_t i = 0; i < args.num_output_types; ++i) {
        const DtypeInfo* info = find_dtype_of_pjrt(args.output_types[i]);
        if (!info)
          return failure(Code::invalid_argument, "compile", "results of known types",
                         "number " + std::to_string(args.output_types[i]) + " of PJRT_Buffer_Type",
                         "convert the result in the program");
        outputs.push_back({info->id, {}});
      }
    }
    ARGS(PJRT_Executable_OutputDimensions);
    args.executable = program->executable;
    RETURN_IF_ERROR(CALL(library, PJRT_Executable_OutputDimensions));
    const int64_t* dims = args.dims;
    for (size_t i = 0; i < outputs.size() && i < args.num_outputs; ++i) {
      outputs[i].dims.assign(dims, dims + args.dim_sizes[i]);
      dims += args.dim_sizes[i];
    }
    return ExecutablePtr(std::make_shared<PjrtExecutable>(std::move(program), std::move(outputs), device));
  }

  Result<Execution> execute(std::span<const BufferPtr> arguments, std::span<const int64_t> keep) override {
    const ClientPtr& client = program_->client;
    std::vector<PJRT_Buffer*> inputs(arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) {
      // Every Buffer here is a PjrtBuffer or belongs to another backend altogether, and the owner does not mix them.
      auto* buffer = static_cast<PjrtBuffer*>(arguments[i].get());
      if (!buffer || buffer->client() != client.get())
        return failure(
            Code::invalid_argument, "execute", "buffers of the executable's client",
            buffer ? "one of another client as argument " + std::to_string(i) : "none as argument " + std::to_string(i),
            "copy it to this device first");
      inputs[i] = buffer->get();
    }
    std::vector<PJRT_Buffer*> results(outputs().size());

    PJRT_ExecuteOptions options{};
    options.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE;
    options.non_donatable_input_indices = keep.data();
    options.num_non_donatable_input_indices = keep.size();
    PJRT_Buffer* const* input_list = inputs.data();
    PJRT_Buffer** result_list = results.data();
    PJRT_Event* done = nullptr;
    ARGS(PJRT_LoadedExecutable_Execute);
    args.executable = program_->loaded;
    args.options = &options;
    args.argument_lists = &input_list;
    args.num_devices = 1;
    args.num_args = inputs.size();
    args.output_lists = &result_list;
    args.device_complete_events = &done;
    RETURN_IF_ERROR(CALL(client->library, PJRT_LoadedExecutable_Execute));

    Execution execution{{}, client->event(done)};
    execution.outputs.reserve(results.size());
    for (size_t i = 0; i < results.size(); ++i)
      execution.outputs.push_back(std::make_shared<PjrtBuffer>(client, results[i], outputs()[i], device()));

    Result<bool> over = execution.done->ready();
    if (!over.ok() || !*over) {
      client->in_flight->start();
      execution.done->on_ready([used = std::vector(arguments.begin(), arguments.end()), self = program_,
                                in_flight = client->in_flight](const Status&) mutable {
        used.clear();
        self.reset();
        in_flight->finish();
      });
    }
    return execution;
  }

  Result<std::string> serialize() override {
    ARGS(PJRT_Executable_Serialize);
    args.executable = program_->executable;
    RETURN_IF_ERROR(CALL(program_->client->library, PJRT_Executable_Serialize));
    std::string bytes(args.serialized_bytes, args.serialized_bytes_size);
    args.serialized_executable_deleter(args.serialized_executable);
    return bytes;
  }

  Result<ExecutableMemory> memory() override {
    ARGS(PJRT_Executable_GetCompiledMemoryStats);
    args.executable = program_->executable;
    RETURN_IF_ERROR(CALL(program_->client->library, PJRT_Executable_GetCompiledMemoryStats));
    return ExecutableMemory{args.generated_code_size_in_bytes, args.argument_size_in_bytes, args.output_size_in_bytes,
                            args.alias_size_in_bytes, args.temp_size_in_bytes};
  }

 private:
  std::shared_ptr<Program> program_;  // shared with running executions
};

// ---------------------------------------------------------------------------------------------------- compile options

// The protobuf wire format, as far as options need it.
void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}
void put_number(std::string& out, int field, int64_t value) {
  put_varint(out, static_cast<uint64_t>(field) << 3);
  put_varint(out, static_cast<uint64_t>(value));
}
void put_bytes(std::string& out, int field, std::string_view value) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | 2);
  put_varint(out, value.size());
  out.append(value);
}

// CompileOptionsProto for one copy of the program on the device with this id. `more` is a message of the same type;
// joining two serialised messages merges them, and the later field wins.
std::string compile_options(int64_t device_id, std::string_view more) {
  std::string ids, assignment, build, options;
  put_number(ids, 1, device_id);    // ComputationDevice.replica_device_ids
  put_number(assignment, 1, 1);     // DeviceAssignmentProto.replica_count
  put_number(assignment, 2, 1);     //   .computation_count
  put_bytes(assignment, 3, ids);    //   .computation_devices
  put_number(build, 1, device_id);  // ExecutableBuildOptionsProto.device_ordinal
  put_number(build, 4, 1);          //   .num_replicas
  put_number(build, 5, 1);          //   .num_partitions
  put_bytes(build, 9, assignment);  //   .device_assignment
  put_bytes(options, 3, build);     // CompileOptionsProto.executable_build_options
  return options.append(more);
}

// ------------------------------------------------------------------------------------------------------------ devices

class PjrtDevice final : public Device {
 public:
  PjrtDevice(ClientPtr client, PJRT_Device* device, int index, int64_t id, std::string kind)
      : Device(index, std::move(kind)), client_(std::move(client)), device_(device), id_(id) {}

  static Result<DevicePtr> make(ClientPtr client, PJRT_Device* device, int index) {
    Library* library = client->library;
    PJRT_DeviceDescription* description;
    {
      ARGS(PJRT_Device_GetDescription);
      args.device = device;
      RETURN_IF_ERROR(CALL(library, PJRT_Device_GetDescription));
      description = args.device_description;
    }
    int64_t id;
    {
      ARGS(PJRT_DeviceDescription_Id);
      args.device_description = description;
      RETURN_IF_ERROR(CALL(library, PJRT_DeviceDescription_Id));
      id = args.id;
    }
    ARGS(PJRT_DeviceDescription_Kind);
    args.device_description = description;
    RETURN_IF_ERROR(CALL(library, PJRT_DeviceDescription_Kind));
    return DevicePtr(std::make_shared<PjrtDevice>(std::move(client), device, index, id,
                                                  std::string(args.device_kind, args.device_kind_size)));
  }

  Result<DeviceMemory> memory() override {
    ARGS(PJRT_Device_MemoryStats);
    args.device = device_;
    RETURN_IF_ERROR(CALL(client_->library, PJRT_Device_MemoryStats));
    auto given = [](bool set, int64_t value) { return set ? std::optional(value) : std::nullopt; };
    DeviceMemory memory;
    memory.bytes_in_use = args.bytes_in_use;
    memory.peak_bytes_in_use = given(args.peak_bytes_in_use_is_set, args.peak_bytes_in_use);
    memory.bytes_limit = given(args.bytes_limit_is_set, args.bytes_limit);
    memory.bytes_reserved = given(args.bytes_reserved_is_set, args.bytes_reserved);
    memory.pool_bytes = given(args.pool_bytes_is_set, args.pool_bytes);
    memory.largest_alloc_bytes = given(args.largest_alloc_size_is_set, args.largest_alloc_size);
    memory.allocs = given(args.num_allocs_is_set, args.num_allocs);
    return memory;
  }

  Result<BufferPtr> from_host(const void* data, TensorSpec spec, HostData use,
                              std::function<void()> released) override {
    const DtypeInfo* info = find_dtype(spec.dtype);
    if (!info) {
      if (released) released();
      return failure(Code::invalid_argument, "copy from host", "a dtype that PJRT has",
                     "number " + std::to_string(static_cast<int>(spec.dtype)), "convert it on the host");
    }
    char nothing = 0;
    ARGS(PJRT_Client_BufferFromHostBuffer);
    args.client = client_->client;
    args.data = data ? data : &nothing;  // of an empty array
    args.type = static_cast<PJRT_Buffer_Type>(info->pjrt);
    args.dims = spec.dims.data();
    args.num_dims = spec.dims.size();
    // Only what is copied during the call may end with it.
    args.host_buffer_semantics =
        use == HostData::during_call || !data ? PJRT_HostBufferSemantics_kImmutableOnlyDuringCall
        : use == HostData::until_released     ? PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes
                                              : PJRT_HostBufferSemantics_kImmutableZeroCopy;
    args.device = device_;
    if (Status status = CALL(client_->library, PJRT_Client_BufferFromHostBuffer); !status.ok()) {
      if (released) released();
      return status;
    }
    EventPtr done = client_->event(args.done_with_host_buffer);
    BufferPtr buffer = std::make_shared<PjrtBuffer>(client_, args.buffer, std::move(spec), index());
    if (released) done->on_ready([released = std::move(released)](const Status&) { released(); });
    return buffer;
  }

  Result<BufferPtr> from_device(Buffer& buffer) override {
    auto& source = static_cast<PjrtBuffer&>(buffer);
    if (source.client() != client_.get())
      return failure(Code::invalid_argument, "copy between devices", "a buffer of the same client", "one of another",
                     "copy it through the host");
    ARGS(PJRT_Buffer_CopyToDevice);
    args.buffer = source.get();
    args.dst_device = device_;
    RETURN_IF_ERROR(CALL(client_->library, PJRT_Buffer_CopyToDevice));
    return BufferPtr(std::make_shared<PjrtBuffer>(client_, args.dst_buffer, source.spec(), index()));
  }

  Result<ExecutablePtr> compile(std::string_view text, std::string_view options) override {
    static constexpr std::string_view kFormat = "mlir";
    std::string code(text);  // PJRT's type is not const
    PJRT_Program program{};
    program.struct_size = PJRT_Program_STRUCT_SIZE;
    program.code = code.data();
    program.code_size = code.size();
    program.format = kFormat.data();
    program.format_size = kFormat.size();
    const std::string all_options = compile_options(id_, options);
    ARGS(PJRT_Client_Compile);
    args.client = client_->client;
    args.program = &program;
    args.compile_options = all_options.data();
    args.compile_options_size = all_options.size();
    RETURN_IF_ERROR(CALL(client_->library, PJRT_Client_Compile));
    return PjrtExecutable::make(client_, args.executable, index());
  }

  Result<ExecutablePtr> load(std::string_view bytes) override {
    const std::string options = compile_options(id_, {});
    ARGS(PJRT_Executable_DeserializeAndLoad);
    args.client = client_->client;
    args.serialized_executable = bytes.data();
    args.serialized_executable_size = bytes.size();
    // The device may be another than the one it was compiled for.
    args.overridden_serialized_compile_options = options.data();
    args.overridden_serialized_compile_options_size = options.size();
    RETURN_IF_ERROR(CALL(client_->library, PJRT_Executable_DeserializeAndLoad));
    return PjrtExecutable::make(client_, args.loaded_executable, index());
  }

 private:
  ClientPtr client_;
  PJRT_Device* device_;
  int64_t id_;  // PJRT's, unique over all processes
};

// ------------------------------------------------------------------------------------------------------------ backend

std::string describe(const PjrtOptions& options) {
  std::string text;
  for (const auto& [name, value] : options) {
    text += ";" + name + "=";
    if (auto* string = std::get_if<std::string>(&value)) text += *string;
    if (auto* number = std::get_if<int64_t>(&value)) text += std::to_string(*number);
    if (auto* real = std::get_if<float>(&value)) text += std::to_string(*real);
    if (auto* flag = std::get_if<bool>(&value)) text += *flag ? "true" : "false";
    if (auto* list = std::get_if<std::vector<int64_t>>(&value))
      for (int64_t number : *list) text += std::to_string(number) + ",";
  }
  return text;
}

// The kind of processor and what it can do: a CPU plugin compiles for exactly this.
std::string host_processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string text;
  for (std::string line; std::getline(file, line) && !line.empty();)
    if (line.starts_with("model name") || line.starts_with("flags") || line.starts_with("Features")) text += line;
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  return std::to_string(hash);
}

// What tells two builds of a plugin with the same version apart.
std::string file_identity(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info)) return "?";
  return std::to_string(info.st_size) + "/" + std::to_string(info.st_mtim.tv_sec);
}

class PjrtBackend final : public Backend {
 public:
  static Result<std::shared_ptr<Backend>> open(Library* library, const PjrtOptions& options) {
    RETURN_IF_ERROR(library->initialize());
    std::vector<PJRT_NamedValue> values;
    for (const auto& [name, value] : options) values.push_back(named_value(name, value));
    std::shared_ptr<PjrtBackend> backend(new PjrtBackend);
    {
      ARGS(PJRT_Client_Create);
      args.create_options = values.data();
      args.num_options = values.size();
      RETURN_IF_ERROR(CALL(library, PJRT_Client_Create));
      backend->client_ = std::make_shared<Client>(library, args.client);
    }
    PJRT_Client* client = backend->client_->client;
    {
      ARGS(PJRT_Client_PlatformName);
      args.client = client;
      RETURN_IF_ERROR(CALL(library, PJRT_Client_PlatformName));
      backend->platform_.assign(args.platform_name, args.platform_name_size);
    }
    {
      ARGS(PJRT_Client_PlatformVersion);
      args.client = client;
      RETURN_IF_ERROR(CALL(library, PJRT_Client_PlatformVersion));
      backend->version_.assign(args.platform_version, args.platform_version_size);
      backend->version_ += " (PJRT 0." + std::to_string(library->minor()) + ")";
    }
    {
      ARGS(PJRT_Client_AddressableDevices);
      args.client = client;
      RETURN_IF_ERROR(CALL(library, PJRT_Client_AddressableDevices));
      for (size_t i = 0; i < args.num_addressable_devices; ++i) {
        auto device = PjrtDevice::make(backend->client_, args.addressable_devices[i], static_cast<int>(i));
        if (!device.ok()) return device.status();
        backend->devices_.push_back(*device);
      }
    }
    if (backend->devices_.empty())
      return failure(Code::not_found, "open PJRT plugin " + library->path(), "a device", "none",
                     "check that the accelerator and its driver are there");
    std::string& fingerprint = backend->fingerprint_;
    fingerprint = backend->platform_ + ";" + backend->version_ + ";" + backend->devices_[0]->kind() + ";" +
                  file_identity(library->path()) + describe(options);
    if (backend->platform_ == "cpu") fingerprint += ";" + host_processor();
    return std::shared_ptr<Backend>(std::move(backend));
  }

  ~PjrtBackend() override {
    if (client_) client_->in_flight->drain();
  }

  const std::string& platform() const override { return platform_; }
  const std::string& version() const override { return version_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  std::span<const DevicePtr> devices() const override { return devices_; }

 private:
  // Borrows `name` and `value`.
  static PJRT_NamedValue named_value(const std::string& name, const PjrtValue& value) {
    PJRT_NamedValue named{};
    named.struct_size = PJRT_NamedValue_STRUCT_SIZE;
    named.name = name.data();
    named.name_size = name.size();
    named.value_size = 1;
    if (auto* string = std::get_if<std::string>(&value)) {
      named.type = PJRT_NamedValue_kString;
      named.string_value = string->data();
      named.value_size = string->size();
    } else if (auto* list = std::get_if<std::vector<int64_t>>(&value)) {
      named.type = PJRT_NamedValue_kInt64List;
      named.int64_array_value = list->data();
      named.value_size = list->size();
    } else if (auto* number = std::get_if<int64_t>(&value)) {
      named.type = PJRT_NamedValue_kInt64;
      named.int64_value = *number;
    } else if (auto* real = std::get_if<float>(&value)) {
      named.type = PJRT_NamedValue_kFloat;
      named.float_value = *real;
    } else {
      named.type = PJRT_NamedValue_kBool;
      named.bool_value = std::get<bool>(value);
    }
    return named;
  }

  ClientPtr client_;
  std::string platform_, version_, fingerprint_;
  std::vector<DevicePtr> devices_;
};

}  // namespace

Result<std::shared_ptr<Backend>> open_pjrt(const std::string& path, const PjrtOptions& options) {
  Result<Library*> library = Library::open(path);
  if (!library.ok()) return library.status();
  return PjrtBackend::open(*library, options);
}

Result<int> pjrt_api_minor(const std::string& path) {
  Result<Library*> library = Library::open(path);
  if (!library.ok()) return library.status();
  return (*library)->minor();
}

Result<std::string> pjrt_compile_option(std::string_view name, const PjrtValue& value) {
  std::string field, entry, option;  // OptionOverrideProto; an entry of a map; CompileOptionsProto
  if (auto* string = std::get_if<std::string>(&value)) {
    put_bytes(field, 1, *string);
  } else if (auto* flag = std::get_if<bool>(&value)) {
    put_number(field, 2, *flag);
  } else if (auto* number = std::get_if<int64_t>(&value)) {
    put_number(field, 3, *number);
  } else {
    return failure(Code::invalid_argument, "compile option " + std::string(name), "a string, a bool or an integer",
                   "another type", "write a number with a fraction as a string");
  }
  put_bytes(entry, 1, name);
  put_bytes(entry, 2, field);
  put_bytes(option, 7, entry);  // .env_option_overrides
  return option;
}

}  // namespace accel

#endif  // ACCEL_HAVE_PJRT
