// bench/checkpoint_torch.cpp -- saving and loading beside what the disk takes and what torch does with the same bytes.
//
//   build/release/bench/checkpoint_torch --python PYTHON [--folder /data/bench] [--mib 1024] [--ranks 2] [--rounds 7]
//
// save       synced, all ranks; beside the best raw write found (1 to 8 threads, past the page cache or not, synced)
// and
//            beside torch.distributed.checkpoint with as many processes
// load       all ranks, files in the page cache; beside torch.load without mmap of the same bytes
// reshard    what 8 ranks wrote on 4, and the other way round, beside what as many ranks wrote as read
// async      what a save in the background costs steps of GEMMs: time blocked and how much longer the steps
//            around it take, beside the synchronous save; with all cores computing, and with one left free
// memory     of a load beside the tensors themselves
//
// Ratios are of the same round. Half of the tensors are split by rows, half by columns.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "bench/arguments.h"
#include "bench/peer.h"
#include "bench/sides.h"
#include "trireme/base/cores.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/comm/rank.h"
#include "trireme/layout/placing.h"

namespace {

using namespace trireme;
using bench::Clock;
using bench::seconds_since;
using bench::Sides;
using bench::Times;
namespace fs = std::filesystem;

struct Options {
  fs::path folder = "bench-checkpoint";
  std::string python;
  std::int64_t mib = 1024;
  int ranks = 2, tensors = 32, rounds = 7, threads = checkpoint::SaverOptions{}.threads;
  std::string parts = "save,load,background";
  bool json = false;
  bool has(std::string_view part) const { return parts.find(part) != std::string::npos; }

  double gib() const { return static_cast<double>(mib) / 1024; }
};

layout::Mesh mesh_of(int ranks) { return layout::Mesh({{"tp", ranks}}); }

void add_state(nn::State& state, const Options& options, int ranks, int rank) {
  const std::int64_t columns = 4096,
                     rows = std::max<std::int64_t>(8, options.mib * (1 << 20) / 4 / columns / options.tensors);
  const layout::Mesh mesh = mesh_of(ranks);
  for (int i = 0; i < options.tensors; ++i) {
    const std::string name = fmt::format("param/t{}", i);
    const auto placement =
        layout::Placing(mesh, rank, name, {rows, columns}).split(static_cast<std::size_t>(i % 2), "tp").placement();
    state.add(name, at::full({layout::local_elements(placement)}, i + rank, at::kFloat), placement);
  }
}

/// `threads` threads write as many bytes together, in large pieces, and sync. 0: cannot be done.
double raw_write(const Options& options, int threads, bool direct) {
  const fs::path path = options.folder / "raw";
  const auto bytes = static_cast<std::uint64_t>(options.mib) << 20;
  constexpr std::uint64_t kPiece = 8 << 20;
  const formats::AlignedMemory memory(kPiece * static_cast<std::size_t>(threads));
  std::fill_n(memory.data(), memory.size(), std::byte{1});
  const auto begin = Clock::now();
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | (direct ? O_DIRECT : 0), 0666);
  if (file < 0) return 0;
  std::atomic<std::uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::vector<std::thread> started;
  for (int i = 0; i < threads; ++i) {
    started.emplace_back([&, data = memory.data() + kPiece * static_cast<std::size_t>(i)] {
      for (std::uint64_t at; (at = next.fetch_add(kPiece)) < bytes;) {
        const auto count = std::min(kPiece, bytes - at);
        if (::pwrite(file, data, count, static_cast<off_t>(at)) != static_cast<ssize_t>(count)) failed = true;
      }
    });
  }
  for (std::thread& thread : started) thread.join();
  if (::fsync(file) != 0) failed = true;
  const double seconds = seconds_since(begin);
  ::close(file);
  fs::remove(path);
  return failed ? 0 : seconds;
}

struct RawWay {
  int threads = 1;
  bool direct = false;
  std::string text() const { return fmt::format("raw write, {} threads{}", threads, direct ? ", direct" : ""); }
};

RawWay best_raw(const Options& options) {
  RawWay best;
  double least = 1e30;
  for (int round = 0; round < 2; ++round) {
    for (const bool direct : {false, true}) {
      for (const int threads : {1, 2, 4, 8}) {
        const double seconds = raw_write(options, threads, direct);
        if (seconds <= 0 || seconds >= least) continue;
        least = seconds;
        best = {threads, direct};
      }
    }
  }
  return best;
}

/// Ranks that stay, with their part of the state: each call is timed between barriers, on all of them together.
class Crew {
 public:
  Crew(const Options& options, int ranks) : options_(options), ranks_(ranks) {}

  /// Seconds; `body` with rank and state.
  template <typename Body>
  double time(Body&& body) const {
    double seconds = 0;
    comm::run_ranks(ranks_, [&](comm::Rank& rank) {
      at::set_num_threads(1);
      nn::State state;
      add_state(state, options_, ranks_, rank.rank());
      checkpoint::Saver saver(state, rank.world(), {.background = false, .threads = options_.threads});
      rank.world().barrier().wait();
      const auto begin = Clock::now();
      body(rank, state, saver);
      rank.world().barrier().wait();
      if (rank.rank() == 0) seconds = seconds_since(begin);
    });
    return seconds;
  }
  fs::path folder() const { return options_.folder / fmt::format("ours-{}", ranks_); }
  double save() const {
    fs::remove_all(folder());  // as the peer does
    return time([&](comm::Rank&, nn::State&, checkpoint::Saver& saver) {
      const auto outcome = saver.save({.folder = folder(), .step = 1});
      if (outcome && !outcome->why.empty()) throw std::runtime_error(outcome->why);
    });
  }
  /// What `writer` saved.
  double load(const Crew& writer) const {
    return time([&](comm::Rank&, nn::State& state, checkpoint::Saver&) {
      checkpoint::load(formats::CheckpointFolder(writer.folder() / formats::checkpoint_name(1)), state);
    });
  }

 private:
  const Options& options_;
  int ranks_;
};

/// One rank that computes `threads` wide; `step_s`: how long a step takes.
class Steps {
 public:
  Steps(const Options& options, comm::Rank& rank, int threads, double step_s) : options_(options) {
    at::set_num_threads(threads);
    add_state(state_, options, 1, 0);
    saver_ =
        std::make_unique<checkpoint::Saver>(state_, rank.world(), checkpoint::SaverOptions{.threads = options.threads});
    compute(5);
    const auto begin = Clock::now();
    compute(20);
    products_ = std::max(1, static_cast<int>(step_s / (seconds_since(begin) / 20)));
    take(3, 0);  // the first save allocates
    finish();
  }

  /// By the clock, and processor time of the thread that takes the steps: what others on the machine take is not in it.
  struct Taken {
    double seconds = 0, thread_s = 0;
  };
  /// `count` steps; a save begins after step `save_at`.
  Taken take(int count, int save_at) {
    const auto begin = Clock::now();
    const double thread_begin = thread_seconds();
    for (int step = 0; step < count; ++step) {
      compute(products_);
      saver_->wait_copied();
      if (saver_->busy() && saver_->written()) saver_->collect();
      if (step == save_at) saver_->begin({.folder = options_.folder / "async", .step = 1});
    }
    return {seconds_since(begin), thread_seconds() - thread_begin};
  }
  checkpoint::SaveOutcome finish() {
    saver_->collect();
    return *saver_->outcome(/*wait=*/true);
  }

 private:
  static double thread_seconds() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  void compute(int products) {
    for (int i = 0; i < products; ++i) at::mm_out(c_, a_, b_);
  }

  const Options& options_;
  nn::State state_;
  std::unique_ptr<checkpoint::Saver> saver_;
  at::Tensor a_ = at::rand({1024, 1024}), b_ = at::rand({1024, 1024}), c_ = at::mm(a_, b_);
  int products_ = 1;
};

void measure_background(const Options& options, int threads, double sync_s, Sides& sides) {
  const std::string name = threads == usable_cores()
                               ? "background, all cores compute"
                               : fmt::format("background, {} of {} cores compute", threads, usable_cores());
  const std::string limit = name + ": a tenth of a synchronous save";
  comm::run_ranks(1, [&](comm::Rank& rank) {
    Steps steps(options, rank, threads, std::max(0.02, sync_s / 8));
    const Crew alone(options, 1);
    for (int round = 0; round < options.rounds; ++round) {
      const Steps::Taken plain = steps.take(24, -1), saving = steps.take(24, 1);
      const checkpoint::SaveOutcome outcome = steps.finish();
      // What was blocked is part of the longer steps; it never costs less than that.
      const double cost = std::max({saving.seconds - plain.seconds, outcome.blocked_s, 1e-6});
      sides.add(name, 1, cost);
      sides.add(limit, 1, alone.save() / 10);
      at::set_num_threads(threads);
      // Where it goes: the copy that the next update waits for, and what is left of it when that comes.
      sides.add(name + ", of it copying", options.gib(), outcome.copy_s);
      sides.add(name + ", of it blocked", 1, std::max(outcome.blocked_s, 1e-6));
      // Of one thread: copying included, when the update waits for it and so helps.
      if (threads == 1)
        sides.add(name + ", processor time of the steps' thread", 1, std::max(saving.thread_s - plain.thread_s, 1e-6));
      sides.add(name + ", writing and hashing behind", options.gib(), outcome.write_s);
    }
  });
  sides.compare(name, name, limit, 1);
}

std::int64_t status_kib(const char* what) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(what)) return std::atoll(line.c_str() + line.find(':') + 1);
  }
  return 0;
}

/// Of one rank of two, beside its tensors.
double load_mib(const Options& options, const fs::path& checkpoint) {
  nn::State state;
  add_state(state, options, 2, 1);
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak counts from here
  const std::int64_t before = status_kib("VmRSS");
  checkpoint::load(formats::CheckpointFolder(checkpoint), state);
  return static_cast<double>(status_kib("VmHWM") - before) / 1024;
}

class Peer {
 public:
  explicit Peer(const Options& options)
      : options_(options), process_({options.python, TRIREME_BENCH_DIR "/peers/checkpoint.py"}) {}
  double ask(const char* what) {
    const nlohmann::json answer = process_.ask(nlohmann::json{
        {"what", what},
        {"folder", (options_.folder / "torch").string()},
        {"bytes", options_.mib << 20},
        {"tensors", options_.tensors},
        {"ranks", options_.ranks},
        {"port", 20000 + (::getpid() + 7 * asked_++) %
                             20000}}.dump());
    return answer.at("seconds").get<double>();
  }

 private:
  const Options& options_;
  bench::PeerProcess process_;
  int asked_ = 0;
};

constexpr const char *kSave = "save, ours", *kDcp = "save, torch.distributed.checkpoint", *kLoad = "load, ours",
                     *kTorchLoad = "load, torch.load without mmap";

Sides measure(const Options& options) {
  Sides sides;
  const bool save = options.has("save"), load = options.has("load");
  const RawWay way = save ? best_raw(options) : RawWay{};
  const std::string raw = way.text();
  const Crew crew(options, options.ranks), four(options, 4), eight(options, 8);
  std::optional<Peer> peer;
  if (!options.python.empty()) peer.emplace(options);
  double sync_s = crew.save();  // the first of anything is slower
  if (load) four.save(), eight.save();
  for (int round = 0; save && round < options.rounds; ++round) {
    sides.add(raw, options.gib(), raw_write(options, way.threads, way.direct));
    sync_s = crew.save();
    sides.add(kSave, options.gib(), sync_s);
    if (peer) sides.add(kDcp, options.gib(), peer->ask("save"));
  }
  for (int round = 0; load && round < options.rounds; ++round) {
    crew.load(crew);  // into the page cache
    sides.add(kLoad, options.gib(), crew.load(crew));
    if (peer && save) sides.add(kTorchLoad, options.gib(), peer->ask("load"));
    if (round == 0) four.load(four), eight.load(eight);
    sides.add("load, 4 of 4", options.gib(), four.load(four));
    sides.add("load, 4 of 8", options.gib(), four.load(eight));
    sides.add("load, 8 of 8", options.gib(), eight.load(eight));
    sides.add("load, 8 of 4", options.gib(), eight.load(four));
  }
  sides.compare("save over raw write", kSave, raw, 0.8);
  sides.compare("save over torch.distributed.checkpoint", kSave, kDcp, 1.5);
  sides.compare("load over torch.load", kLoad, kTorchLoad, 3);
  sides.compare("4 ranks, of 8 over of 4", "load, 4 of 8", "load, 4 of 4", 1 / 1.3);
  sides.compare("8 ranks, of 4 over of 8", "load, 8 of 4", "load, 8 of 8", 1 / 1.3);
  const bool background = options.has("background");
  if (background) measure_background(options, usable_cores(), sync_s, sides);
  if (background && usable_cores() > 1) measure_background(options, usable_cores() - 1, sync_s, sides);
  return sides;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  bench::Arguments app("Checkpoints beside the disk and torch");
  app.add_option("--folder", options.folder, "on the disk to measure; removed at the end").show_default();
  app.add_option("--python", options.python, "with torch: the peer; without it, ours and the disk alone");
  app.add_option("--mib", options.mib, "of state").show_default();
  app.add_option("--ranks", options.ranks).show_default();
  app.add_option("--rounds", options.rounds).show_default();
  app.add_option("--threads", options.threads, "of a rank, that write a save").show_default();
  app.add_option("--parts", options.parts, "of save, load, background").show_default();
  app.add_flag("--json", options.json);
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  if (fs::exists(options.folder)) {
    fmt::print(stderr, "{} is already there\n", options.folder.string());
    return 2;
  }
  fs::create_directories(options.folder);
  const Sides sides = measure(options);
  const double mib =
      options.has("load") ? load_mib(options, Crew(options, 4).folder() / formats::checkpoint_name(1)) : 0;
  if (options.json) {
    auto out = sides.json();
    out["load_mib_beside_tensors"] = mib;
    fmt::print("{}\n", out.dump(2));
  } else {
    fmt::print("{} MiB on {} ranks\n\n{}\n", options.mib, options.ranks, sides.text("GiB/s"));
    if (options.has("load")) fmt::print("  a load takes {:.1f} MiB beside its tensors (goal: 64)\n", mib);
  }
  fs::remove_all(options.folder);
  return 0;
}
