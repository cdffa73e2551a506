// bench/comm_vs_mpi.cpp -- our collectives beside Open MPI's own, in one run: as many processes, and as many
// threads.
//
//   mpirun -n 2 --bind-to none build/release/bench/comm_vs_mpi [--bytes 1K:64M] [--op all_reduce,...] [--rounds 7]
//   [--json]
//
// Every row is measured in rounds: Open MPI's blocking call, ours over MPI, ours between threads of rank 0 (the other
// processes sleep meanwhile), then again. Shown are medians over the rounds and the ratios of those medians; above 1
// ours is faster. MPI runs at the thread level that our transport asks for (MPI_THREAD_SERIALIZED). float32, out of
// place, sum; the slowest rank counts. The last lines compare all_reduce in place with a plain loop of as many threads
// over the same bytes.
#include <mpi.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/arguments.h"
#include "bench/ranks.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"

namespace {

using namespace std::chrono_literals;
using namespace trireme;
using namespace trireme::comm;

struct Options {
  std::string bytes = "1K:64M", ops = "all";
  int rounds = 7;
  double batch_s = 0.02;
  bool json = false, threads = true;
};

struct Buffers {
  Buffers(std::size_t bytes, int ranks) : part(std::max<std::size_t>(1, bytes / 4 / static_cast<std::size_t>(ranks))) {
    whole = std::max(bytes / 4, part * static_cast<std::size_t>(ranks));
    in.assign(whole, 0.0f);
    out.assign(whole, 0.0f);
  }
  std::size_t part, whole;
  std::vector<float> in, out;
};

void call_openmpi(Collective op, Buffers& b) {
  const int whole = static_cast<int>(b.whole), part = static_cast<int>(b.part);
  float *in = b.in.data(), *out = b.out.data();
  MPI_Comm world = MPI_COMM_WORLD;
  switch (op) {
    case Collective::kAllReduce:
      MPI_Allreduce(in, out, whole, MPI_FLOAT, MPI_SUM, world);
      break;
    case Collective::kReduceScatter:
      MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, world);
      break;
    case Collective::kAllGather:
      MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, world);
      break;
    case Collective::kAllToAll:
      MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, world);
      break;
    case Collective::kBroadcast:
      MPI_Bcast(out, whole, MPI_FLOAT, 0, world);
      break;
    case Collective::kReduce:
      MPI_Reduce(in, out, whole, MPI_FLOAT, MPI_SUM, 0, world);
      break;
    case Collective::kGather:
      MPI_Gather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, 0, world);
      break;
    case Collective::kScatter:
      MPI_Scatter(in, part, MPI_FLOAT, out, part, MPI_FLOAT, 0, world);
      break;
    case Collective::kBarrier:
      MPI_Barrier(world);
      break;
  }
}

void call_ours(Group& group, Collective op, Buffers& b) {
  const auto in = [&](std::size_t n) { return ConstBuffer{b.in.data(), n, DType::kF32}; };
  const auto out = [&](std::size_t n) { return Buffer{b.out.data(), n, DType::kF32}; };
  switch (op) {
    case Collective::kAllReduce:
      return group.all_reduce(in(b.whole), out(b.whole), Reduce::kSum).wait();
    case Collective::kReduceScatter:
      return group.reduce_scatter(in(b.part * static_cast<std::size_t>(group.size())), out(b.part), Reduce::kSum)
          .wait();
    case Collective::kAllGather:
      return group.all_gather(in(b.part), out(b.part * static_cast<std::size_t>(group.size()))).wait();
    case Collective::kAllToAll: {
      const std::size_t n = b.part * static_cast<std::size_t>(group.size());
      return group.all_to_all(in(n), out(n)).wait();
    }
    case Collective::kBroadcast:
      return group.broadcast(out(b.whole), 0).wait();
    case Collective::kReduce:
      return group.reduce(in(b.whole), out(b.whole), Reduce::kSum, 0).wait();
    case Collective::kGather:
      return group.gather(in(b.part), out(b.part * static_cast<std::size_t>(group.size())), 0).wait();
    case Collective::kScatter:
      return group.scatter(in(b.part * static_cast<std::size_t>(group.size())), out(b.part), 0).wait();
    case Collective::kBarrier:
      return group.barrier().wait();
  }
}

double now() { return static_cast<double>(now_ns()) / 1e9; }

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Seconds a call, on the slowest process.
template <typename Once>
double time_processes(int calls, Once&& once) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = now();
  for (int i = 0; i < calls; ++i) once();
  double mine = (now() - start) / calls, slowest = 0;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

/// Rank 0 does `body`; the others sleep, so that their cores are free.
template <typename Body>
void alone(int rank, Body&& body) {
  if (rank == 0) body();
  MPI_Request barrier = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &barrier);
  for (int done = 0; done == 0;) {
    MPI_Test(&barrier, &done, MPI_STATUS_IGNORE);
    if (done == 0) std::this_thread::sleep_for(1ms);
  }
}

/// Seconds a call on the slowest of so many threads; `make` gives each rank its call, with buffers of its own.
double time_threads(int ranks, int calls, const std::function<std::function<void()>(Group&)>& make) {
  RanksOptions options;
  options.comm = cli::comm_options({});
  options.comm.flight_directory = "";
  double seconds = 0;
  run_ranks(
      ranks,
      [&](Rank& rank) {
        const std::function<void()> once = make(rank.world());
        for (int i = 0; i < 3; ++i) once();
        rank.world().barrier().wait();
        const double start = now();
        for (int i = 0; i < calls; ++i) once();
        double mine = (now() - start) / calls;
        rank.world().all_reduce(Buffer{&mine, 1, DType::kF64}, Reduce::kMax).wait();
        if (rank.rank() == 0) seconds = mine;
      },
      options);
  return seconds;
}

double time_threads(int ranks, Collective op, std::size_t bytes, int calls) {
  return time_threads(ranks, calls, [&](Group& group) {
    return [&group, op, buffers = std::make_shared<Buffers>(bytes, ranks)] { call_ours(group, op, *buffers); };
  });
}

double time_in_place(int ranks, std::size_t bytes, int calls) {
  return time_threads(ranks, calls, [&](Group& group) {
    return [&group, data = std::make_shared<std::vector<float>>(bytes / 4, 0.0f)] {
      group.all_reduce(Buffer{data->data(), data->size(), DType::kF32}, Reduce::kSum).wait();
    };
  });
}

/// The bytes of an all_reduce in place, moved by plain loops: every thread adds up its share of all vectors and stores
/// it in all.
double time_plain_loop(int threads, std::size_t bytes, int calls) {
  const std::size_t count = bytes / 4;
  std::vector<std::vector<float>> vectors(static_cast<std::size_t>(threads), std::vector<float>(count, 0.0f));
  std::vector<double> seconds(static_cast<std::size_t>(threads));
  std::atomic<int> ready{0};
  const auto work = [&](int t) {
    const std::size_t begin = count * static_cast<std::size_t>(t) / static_cast<std::size_t>(threads);
    const std::size_t end = count * static_cast<std::size_t>(t + 1) / static_cast<std::size_t>(threads);
    const auto pass = [&] {
      if (threads == 2) {
        float* __restrict a = vectors[0].data(), * __restrict b = vectors[1].data();
        for (std::size_t i = begin; i < end; ++i) a[i] = b[i] = a[i] + b[i];
      } else {
        for (std::size_t i = begin; i < end; ++i) {
          float sum = 0;
          for (const auto& vector : vectors) sum += vector[i];
          for (auto& vector : vectors) vector[i] = sum;
        }
      }
    };
    pass();
    ready.fetch_add(1);
    while (ready.load() < threads) std::this_thread::yield();
    const double start = now();
    for (int i = 0; i < calls; ++i) {
      pass();
      asm volatile("" ::: "memory");  // each pass for itself: the compiler would merge them and touch memory once
    }
    seconds[static_cast<std::size_t>(t)] = (now() - start) / calls;
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work, t);
  work(0);
  for (auto& other : others) other.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

void run(Rank& rank, const Options& options) {
  Group& world = rank.world();
  std::vector<Collective> ops;
  for (const std::string& word : split(options.ops, ',')) {
    for (const Collective op : cost::all_collectives()) {
      if (word == "all" || word == cost::name(op)) ops.push_back(op);
    }
  }
  const auto range = split(options.bytes, ':');
  const auto low = parse_bytes(range.front()), high = parse_bytes(range.back());
  nlohmann::json rows = nlohmann::json::array();
  TextTable table({{"operation"},
                   {"bytes", TextTable::Align::kRight},
                   {"Open MPI", TextTable::Align::kRight},
                   {"ours, MPI", TextTable::Align::kRight},
                   {"ratio", TextTable::Align::kRight},
                   {"algorithm"},
                   {"ours, threads", TextTable::Align::kRight},
                   {"ratio", TextTable::Align::kRight}});
  for (const Collective op : ops) {
    for (auto size = low; size <= (op == Collective::kBarrier ? low : high); size *= 4) {
      const auto bytes = static_cast<std::size_t>(size);
      Buffers buffers(bytes, world.size());
      const auto peer = [&] { call_openmpi(op, buffers); };
      const auto ours = [&] { call_ours(world, op, buffers); };
      for (int i = 0; i < 3; ++i) {
        peer();
        ours();
      }
      const auto calls_for = [&](double seconds) {
        return std::clamp(static_cast<int>(options.batch_s / std::max(seconds, 1e-7)), 1, 5000);
      };
      const int calls = calls_for(std::max(time_processes(3, peer), time_processes(3, ours)));
      std::vector<double> peer_s, ours_s, threads_s;
      for (int round = 0; round < options.rounds; ++round) {
        peer_s.push_back(time_processes(calls, peer));
        ours_s.push_back(time_processes(calls, ours));
        if (!options.threads) continue;
        alone(rank.rank(), [&] { threads_s.push_back(time_threads(world.size(), op, bytes, calls)); });
      }
      if (rank.rank() != 0) continue;
      const double p = median(peer_s), o = median(ours_s), t = median(threads_s);
      const std::string algorithm(cost::name(world.choose(op, buffers.whole * 4)));
      rows.push_back({{"op", cost::name(op)},
                      {"bytes", bytes},
                      {"openmpi_s", p},
                      {"mpi_s", o},
                      {"mpi_ratio", p / o},
                      {"algorithm", algorithm},
                      {"threads_s", t},
                      {"threads_ratio", t > 0 ? p / t : 0}});
      table.add({std::string(cost::name(op)), short_bytes(static_cast<double>(bytes)), short_seconds(p),
                 short_seconds(o), fmt::format("{:.2f}", p / o), algorithm, t > 0 ? short_seconds(t) : "-",
                 t > 0 ? fmt::format("{:.2f}", p / t) : "-"});
      std::fprintf(stderr, "\r%-60s",
                   fmt::format("{} {}", cost::name(op), short_bytes(static_cast<double>(bytes))).c_str());
    }
  }
  std::vector<double> loop_s, in_place_s;
  constexpr std::size_t kLarge = 64 << 20;
  alone(rank.rank(), [&] {
    for (int round = 0; round < options.rounds; ++round) {
      loop_s.push_back(time_plain_loop(world.size(), kLarge, 3));
      in_place_s.push_back(time_in_place(world.size(), kLarge, 3));
    }
  });
  if (rank.rank() != 0) return;
  std::fprintf(stderr, "\r%-60s\r", "");
  const double loop = median(loop_s), ours = median(in_place_s);
  if (options.json) {
    const nlohmann::json document = {
        {"ranks", world.size()}, {"rows", rows}, {"plain_loop_64M_s", loop}, {"in_place_64M_s", ours}};
    std::printf("%s\n", document.dump(1).c_str());
    return;
  }
  std::printf("%d ranks; medians of %d rounds; ratio: Open MPI's time over ours, above 1 ours is faster\n\n%s\n",
              world.size(), options.rounds, table.text().c_str());
  std::printf(
      "64 MiB all_reduce in place between threads: %s; the same bytes by plain loops: %s; %.0f %% of that speed\n",
      short_seconds(ours).c_str(), short_seconds(loop).c_str(), 100 * loop / ours);
}

}  // namespace

int main(int count, char** arguments) {
  Options options;
  int ranks = 2;
  bench::Arguments app("Our collectives beside Open MPI's own");
  app.add_option("--ranks", ranks, "How many ranks to start; under mpirun, those that it started").show_default();
  app.add_option("--bytes", options.bytes, "LOW:HIGH, times 4 each").show_default();
  app.add_option("--op", options.ops, "Operations, separated by commas, or all").show_default();
  app.add_option("--rounds", options.rounds, "Rounds, of which the median is shown").show_default();
  app.add_option("--seconds", options.batch_s, "Time for one batch of one side").show_default();
  app.add_flag("--json", options.json, "One JSON document");
  app.add_flag("!--no-threads", options.threads, "Leave out ranks that are threads");
  if (const std::optional<int> status = app.parse(count, arguments)) return *status;
  spec::Recipe recipe;
  recipe.comm.transport = spec::Transport::kMpi;
  return bench::run_on_ranks(std::move(recipe), ranks, [&](Rank& rank) { run(rank, options); });
}
