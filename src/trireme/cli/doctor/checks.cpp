#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/instruction_set.h"
#include "trireme/base/plugin.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/doctor/doctor.h"
#include "trireme/comm/launch.h"
#include "trireme/comm/process.h"
#include "trireme/observe/peak_file.h"

namespace trireme::cli {
namespace {

using enum Finding::State;

std::string memory_text(std::uint64_t bytes) { return short_bytes(static_cast<double>(bytes)); }

Finding processor(const observe::Machine& machine) {
  const InstructionSet set = machine_instruction_set();
  std::string text = fmt::format("{}, {} of {} processors usable, instructions {}",
                                 machine.cpu_model.empty() ? "unknown model" : machine.cpu_model, machine.usable_cpus,
                                 machine.cpus, to_string(set));
  if (machine.cpu_quota) text += fmt::format(", limited to the time of {:.3g}", *machine.cpu_quota);
  if (set == InstructionSet::kPlain) {
    return {"processor", kNote, text, "loops run without vector instructions: use a processor with AVX2 or AVX-512"};
  }
  return {"processor", kFine, text};
}

Finding memory(const observe::Machine& machine) {
  constexpr std::uint64_t kLittle = std::uint64_t{1} << 30;
  const std::uint64_t usable =
      std::min(machine.memory_available, machine.memory_limit.value_or(machine.memory_available));
  std::string text =
      fmt::format("{}, {} available", memory_text(machine.memory), memory_text(machine.memory_available));
  if (machine.memory_limit) text += fmt::format(", limited to {}", memory_text(*machine.memory_limit));
  if (usable < kLittle)
    return {"memory", kNote, text, "less than 1 GiB is left: end other programs, or train a smaller model"};
  return {"memory", kFine, text};
}

Finding disk(const std::string& run_folder) {
  const auto space = observe::disk_space(run_folder);
  if (!space)
    return {"disk", kFatal, fmt::format("{}: its file system cannot be looked at", run_folder),
            "name another folder as run.out"};
  const std::string text =
      fmt::format("{}: {} of {} free", run_folder, memory_text(space->free), memory_text(space->total));
  if (!space->writable) {
    return {"disk", kFatal, fmt::format("{}; {} cannot be written to", text, space->folder.string()),
            "name another folder as run.out"};
  }
  if (space->free < (std::uint64_t{1} << 30)) return {"disk", kNote, text, "free some space: checkpoints need room"};
  return {"disk", kFine, text};
}

Finding shared_memory() {
  const auto space = observe::disk_space("/dev/shm");
  if (!space || space->folder != "/dev/shm") {
    return {"shared memory", kMissing, "there is no /dev/shm",
            "ranks that are processes are slower without: mount a tmpfs there"};
  }
  const std::string text = fmt::format("/dev/shm: {} of {} free", memory_text(space->free), memory_text(space->total));
  if (space->free < (std::uint64_t{256} << 20)) {
    return {"shared memory", kNote, text, "ranks that are processes may need more: docker run --shm-size=1g"};
  }
  return {"shared memory", kFine, text};
}

Finding limits(const observe::Machine& machine) {
  std::string text, remedy;
  for (const observe::Limit& limit : machine.limits) {
    const std::string value = !limit.soft             ? "unlimited"
                              : limit.unit == "bytes" ? memory_text(*limit.soft)
                                                      : fmt::format("{}", *limit.soft);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", limit.name, value);
    if (limit.name == "open files" && limit.soft && *limit.soft < 1024) remedy = "ulimit -n 4096";
    if (limit.name == "address space" && limit.soft) remedy = "ulimit -v unlimited";
    if (limit.name == "file size" && limit.soft) remedy = "ulimit -f unlimited";
  }
  return {"limits", remedy.empty() ? kFine : kNote, text, remedy};
}

Finding gpus(const observe::Machine& machine) {
  if (machine.gpus.empty()) return {"GPU", kMissing, "none found", "Trireme computes on the processor"};
  std::string text;
  for (const observe::Gpu& gpu : machine.gpus) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", gpu.name, gpu.memory ? ", " + *gpu.memory : "");
  }
  if (machine.gpus[0].driver) text += fmt::format("; driver {}", *machine.gpus[0].driver);
  return {"GPU", kNote, text, "this build of Trireme computes on the processor"};
}

}  // namespace

int usable_threads(const observe::Machine& machine) {
  const double quota = machine.cpu_quota.value_or(machine.usable_cpus);
  return std::max(1, std::min(machine.usable_cpus, static_cast<int>(std::ceil(quota))));
}

LoadedRuntime load_runtime() {
  LoadedRuntime out;
  try {
    const Plugin library = Plugin::load("runtime");
    out.path = library.path();
    const device::Runtime* runtime = library.function<device::RuntimeEntry>(device::kRuntimeEntry)();
    if (runtime->version != device::kRuntimeVersion) {
      out.error =
          fmt::format("{} has version {}, this program needs {}", out.path, runtime->version, device::kRuntimeVersion);
      out.hint = "build and install program and libraries together";
    } else {
      out.runtime = runtime;
    }
  } catch (const Error& error) {
    out.error = error.message();
    out.hint = error.hint();
  }
  return out;
}

std::vector<Finding> check_machine(const observe::Machine& machine, const std::string& run_folder) {
  return {{"system", kFine, fmt::format("{}, {}", machine.host, machine.system)},
          processor(machine),
          memory(machine),
          disk(run_folder),
          shared_memory(),
          limits(machine),
          gpus(machine)};
}

std::vector<Finding> check_libraries(const observe::Machine& machine, const LoadedRuntime& runtime) {
  std::vector<Finding> out;
  if (runtime.runtime != nullptr) {
    const device::Runtime& lib = *runtime.runtime;
    out.push_back({"LibTorch", kFine,
                   fmt::format("{} with {} kernels, in {}", lib.torch_version(), lib.cpu_capability(), runtime.path)});
  } else {
    out.push_back({"LibTorch", kFatal, runtime.error, runtime.hint});
  }
  try {
    out.push_back({"MPI library", kFine, Plugin::load("mpi").path()});
  } catch (const Error& error) {
    out.push_back({"MPI library", kMissing, error.message(),
                   "only ranks on several machines need it: install libopenmpi-dev, then build again"});
  }
  try {
    out.push_back({"UCX library", kFine, comm::load_ucx().path()});
  } catch (const Error& error) {
    out.push_back(
        {"UCX library", kMissing, error.message(),
         "only ranks on several machines that mpirun does not start need it: install libucx-dev, then build again"});
  }
  if (machine.mpi) {
    out.push_back({"MPI launcher", kFine, *machine.mpi});
  } else {
    out.push_back({"MPI launcher", kMissing, "there is no mpirun",
                   "only ranks on several machines need it: install openmpi-bin"});
  }
  const comm::Launch launch = comm::detect_launch();
  out.push_back({"ranks", kFine,
                 launch.kind == comm::Launch::Kind::kSingle
                     ? "nothing started this process as one of several: ranks are threads of one process"
                     : fmt::format("this process was started as rank {} of {}", launch.rank, launch.ranks)});
  return out;
}

std::vector<Finding> check_environment() {
  std::vector<Finding> out;
  for (const EnvVariable& variable : env_table()) {
    if (variable.group == EnvGroup::kSystem) continue;
    if (const auto value = shown_env(variable.name)) {
      out.push_back({std::string(variable.name), kFine, fmt::format("{}: {}", *value, variable.meaning)});
    }
  }
  if (out.empty()) out.push_back({"environment", kFine, "no variable that Trireme reads is set"});
  return out;
}

std::vector<Finding> check_test(const SelfTest& test) {
  std::vector<Finding> out;
  const std::string threads = counted(static_cast<std::size_t>(test.threads), "thread");
  out.push_back(
      {"memory rate", kFine, fmt::format("{} with {}", short_bandwidth(test.memory_bytes_per_second), threads)});
  const std::string all_reduce = fmt::format("{} over {} ranks in {}", memory_text(test.all_reduce_bytes), test.ranks,
                                             short_seconds(test.all_reduce_seconds));
  if (test.all_reduce_right) {
    out.push_back({"all_reduce", kFine, all_reduce});
  } else {
    out.push_back({"all_reduce", kFatal, all_reduce + ", with a wrong sum",
                   "this is a defect of the machine or of Trireme: please report it"});
  }
  if (!test.gemm_error) return out;
  constexpr double kMost = 1e-4;  // for size 64; 1e-6 is usual
  if (!(*test.gemm_error < kMost)) {
    out.push_back({"matrices", kFatal, fmt::format("GEMMs are off by {:.2g}", *test.gemm_error),
                   "LibTorch computes wrongly here: try TRIREME_LIBTORCH with another build"});
    return out;
  }
  const auto rate = [](const std::optional<double>& flops) -> std::string {
    if (!flops) return "failed";
    return *flops < 1e12 ? fmt::format("{:.3g} GFLOP/s", *flops / 1e9) : fmt::format("{:.3g} TFLOP/s", *flops / 1e12);
  };
  const std::string rates =
      fmt::format("fp32 {}, bf16 {} with {}", rate(test.fp32_flops), rate(test.bf16_flops), threads);
  if (!test.not_stored.empty()) {
    out.push_back({"matrices", kNote,
                   fmt::format("{}; not stored as the peak of a run's MFU: {}", rates, test.not_stored),
                   "set XDG_CACHE_HOME to a folder that can be written to"});
  } else if (test.quiet()) {
    out.push_back({"matrices", kFine,
                   fmt::format("{}; stored in {}, as the peak of a run's MFU", rates, observe::peak_path().string())});
  } else {
    out.push_back({"matrices", kNote,
                   fmt::format("{}, but other programs kept the processors busy: only {:.0f} % of the time was left",
                               rates, test.share * 100),
                   "run trireme doctor again when the machine is quiet: these rates were not stored for MFU"});
  }
  return out;
}

}  // namespace trireme::cli
