// What ranks that are processes do with a real GPU and NCCL: gpu_ranks WHAT under mpirun. tests/gpu/nccl.sh runs all.
//
// Prints "fine" from rank 0 and exits 0 when all went as it should; failures show the way they show in the program.
// Every result is held against the same call on the host, over MPI, which has tests of its own.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/comm/process.h"
#include "trireme/device/cuda.h"
#include "trireme/device/stream.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/parallel/gpu_exchange.h"

namespace {

using namespace std::chrono_literals;
using namespace trireme;
using comm::Buffer;
using comm::ConstBuffer;
using comm::Group;
using comm::Rank;
using comm::Reduce;

at::Device g_gpu = at::kCPU;  // of this rank
constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte};

/// Ones and twos: sums, GEMMs and averages of two and four ranks are exact in every type and order.
at::Tensor numbers(int rank, std::int64_t count, at::ScalarType type) {
  return at::arange(count, at::kLong).mul(7).add(3 * rank).remainder(2).add(1).to(type);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// The same call on the host and on the GPU.
void both(Group& group, const std::string& what, at::ScalarType type, std::int64_t in_count, std::int64_t out_count,
          const std::function<void(ConstBuffer, Buffer)>& call) {
  const at::Tensor here = numbers(group.rank(), in_count, type), there = here.to(g_gpu);
  at::Tensor out = at::zeros({out_count}, type), out_there = out.to(g_gpu);
  call(device::to_const_buffer(here), device::to_buffer(out));
  call(device::to_const_buffer(there), device::to_buffer(out_there));
  if (same_bits(out_there.cpu(), out)) return;
  throw Error(fmt::format("{} of {} x {} on {} ranks of '{}' differs from the host's on rank {}", what, in_count,
                          c10::toString(type), group.size(), group.name(), group.rank()));
}

/// Blocks that differ, some of them empty.
std::vector<std::size_t> uneven(int ranks, std::int64_t count) {
  std::vector<std::size_t> counts;
  for (int r = 0; r < ranks; ++r) {
    counts.push_back(r % 3 == 1 ? 0 : static_cast<std::size_t>(count) + static_cast<std::size_t>(r));
  }
  return counts;
}

void every_call(Group& group) {
  const int ranks = group.size(), me = group.rank();
  for (const at::ScalarType type : kTypes) {
    for (const std::int64_t count : {std::int64_t{1}, std::int64_t{7}, std::int64_t{1300}, std::int64_t{200'003}}) {
      for (const Reduce reduce : comm::kAllReduces) {
        both(group, "all_reduce", type, count, count,
             [&](auto in, auto out) { group.all_reduce(in, out, reduce).wait(); });
        both(group, "reduce_scatter", type, count * ranks, count,
             [&](auto in, auto out) { group.reduce_scatter(in, out, reduce).wait(); });
        both(group, "reduce", type, count, count,
             [&](auto in, auto out) { group.reduce(in, out, reduce, ranks - 1).wait(); });
        const auto counts = uneven(ranks, count);
        const auto whole = static_cast<std::int64_t>(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
        both(group, "reduce_scatter_v", type, whole, static_cast<std::int64_t>(counts[static_cast<std::size_t>(me)]),
             [&](auto in, auto out) { group.reduce_scatter_v(in, out, counts, reduce).wait(); });
      }
      const auto counts = uneven(ranks, count);
      const auto mine = static_cast<std::int64_t>(counts[static_cast<std::size_t>(me)]);
      const auto whole = static_cast<std::int64_t>(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
      both(group, "all_gather", type, count, count * ranks,
           [&](auto in, auto out) { group.all_gather(in, out).wait(); });
      both(group, "all_gather_v", type, mine, whole,
           [&](auto in, auto out) { group.all_gather_v(in, out, counts).wait(); });
      both(group, "all_to_all", type, count * ranks, count * ranks,
           [&](auto in, auto out) { group.all_to_all(in, out).wait(); });
      const std::vector<std::size_t> equal(static_cast<std::size_t>(ranks), counts[static_cast<std::size_t>(me)]);
      both(group, "all_to_all_v", type, mine * ranks, whole,
           [&](auto in, auto out) { group.all_to_all_v(in, out, equal, counts).wait(); });
      both(group, "gather", type, count, count * ranks, [&](auto in, auto out) { group.gather(in, out, 0).wait(); });
      both(group, "scatter", type, count * ranks, count,
           [&](auto in, auto out) { group.scatter(in, out, ranks - 1).wait(); });
      both(group, "gather_v", type, mine, whole,
           [&](auto in, auto out) { group.gather_v(in, out, counts, ranks - 1).wait(); });
      both(group, "scatter_v", type, whole, mine,
           [&](auto in, auto out) { group.scatter_v(in, out, counts, 0).wait(); });
      both(group, "send and receive", type, count, count, [&](auto in, auto out) {
        comm::Work received = group.recv(out, (me + ranks - 1) % ranks), sent = group.send(in, (me + 1) % ranks);
        received.wait();
        sent.wait();
      });
      both(group, "messages with tags turned round", type, count, count, [&](auto in, auto out) {
        const int next = (me + 1) % ranks, before = (me + ranks - 1) % ranks;
        comm::Work first = group.recv(out, before, 5), second;
        at::Tensor other = numbers(0, in.count, type).to(in.device.kind == comm::DeviceKind::kCuda ? g_gpu : at::kCPU);
        at::Tensor sink = at::empty_like(other);
        second = group.recv(device::to_buffer(sink), before, 4);
        comm::Work sent_other = group.send(device::to_const_buffer(other), next, 4), sent = group.send(in, next, 5);
        for (comm::Work* work : {&first, &second, &sent_other, &sent}) work->wait();
      });
      both(group, "broadcast", type, count, count, [&](auto in, auto out) {
        at::Tensor data = numbers(me, in.count, type).to(in.device.kind == comm::DeviceKind::kCuda ? g_gpu : at::kCPU);
        group.broadcast(device::to_buffer(data), 0).wait();
        group.all_reduce(device::to_const_buffer(data), out, Reduce::kMax).wait();
      });
    }
  }
}

void collectives(Rank& rank) {
  Group& world = rank.world();
  every_call(world);
  const auto transposed = world.split(0, -rank.rank(), "turned");
  every_call(*transposed);
  const auto halves = world.split(rank.rank() % 2, 0, "halves");
  every_call(*halves);
}

/// Nobody waits for the GPU between a kernel, a sum over ranks and what is made of it.
void streams(Rank& rank) {
  const auto other = rank.world().split(0, -rank.rank(), "other");
  at::Tensor x = at::full({1 << 20}, rank.rank() + 1, at::TensorOptions(at::kFloat).device(g_gpu));
  const double expected = rank.ranks() * (rank.ranks() + 1) / 2.0;
  for (int turn = 0; turn < 50; ++turn) {
    at::Tensor y = x.mul(1), z = y.clone();
    comm::Work work = rank.world().all_reduce(device::to_buffer(y), Reduce::kSum);
    comm::Work on_other = other->all_reduce(device::to_buffer(z), Reduce::kMax);
    work.wait();
    on_other.wait();
    x = y.mul((rank.rank() + 1) / expected).add(z.sub(rank.ranks()));
  }
  if (x.sub(rank.rank() + 1).abs().max().item<double>() != 0) throw Error("a result was read before it was there");
}

/// Memory kept ready, and a graph with calls in it.
void graphs(Rank& rank) {
  at::Tensor x = at::ones({100'000}, at::TensorOptions(at::kFloat).device(g_gpu)), start = at::ones_like(x);
  const comm::RegisteredBuffer kept = rank.world().register_buffer(device::to_buffer(x));
  const auto body = [&] {
    x.copy_(start);
    for (int i = 0; i < 3; ++i) {
      rank.world().all_reduce(device::to_buffer(x), Reduce::kSum).wait();
      x.mul_(0.5);
    }
  };
  body();
  device::synchronise(g_gpu);
  std::unique_ptr<device::CudaGraph> graph;
  comm::CapturedCollectives calls(rank.world(), [&] { graph = std::make_unique<device::CudaGraph>(body); });
  for (int turn = 1; turn <= 20; ++turn) {
    start.fill_(turn);
    calls.replay([&] { graph->replay(); });
    double expected = turn;
    for (int i = 0; i < 3; ++i) expected *= rank.ranks() * 0.5;
    if (x.max().item<double>() != expected || x.min().item<double>() != expected) {
      throw Error(fmt::format("replay {} gave {} instead of {}", turn, x.max().item<double>(), expected));
    }
  }
}

/// About so many seconds of work for the GPU's default stream.
void keep_busy(double seconds) {
  at::Tensor a = at::ones({8192, 8192}, at::TensorOptions(at::kFloat).device(g_gpu)), b = at::empty_like(a);
  at::mm_out(b, a, a);
  device::synchronise(g_gpu);
  const auto before = std::chrono::steady_clock::now();
  at::mm_out(b, a, a);
  device::synchronise(g_gpu);
  const double once = std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
  for (int i = 0; i < seconds / once; ++i) at::mm_out(b, a, a);
}

bool is_last(Rank& rank) { return rank.rank() == rank.ranks() - 1; }

void wait_for_the_error(Rank& rank) {
  for (int i = 0; i < 4000; ++i) {
    rank.world().barrier().wait();
    std::this_thread::sleep_for(5ms);
  }
}

/// One rank's GPU is busy for longer than the deadline: found although no host waits for the call.
void late(Rank& rank) {
  at::Tensor x = at::ones({1000}, at::TensorOptions(at::kFloat).device(g_gpu));
  rank.world().all_reduce(device::to_buffer(x), Reduce::kSum).wait();
  if (is_last(rank)) keep_busy(8);
  rank.world().barrier().wait();
  rank.world().all_reduce(device::to_buffer(x), Reduce::kSum).wait();
  wait_for_the_error(rank);
}

/// One rank is killed while the others' GPUs wait for it and their hosts wait for their GPUs.
void killed(Rank& rank) {
  at::Tensor x = at::ones({1000}, at::TensorOptions(at::kFloat).device(g_gpu));
  rank.world().all_reduce(device::to_buffer(x), Reduce::kSum).wait();
  if (is_last(rank)) keep_busy(20);
  rank.world().barrier().wait();
  rank.world().all_reduce(device::to_buffer(x), Reduce::kSum).wait();
  if (is_last(rank)) std::raise(SIGKILL);
  device::synchronise(g_gpu);
  wait_for_the_error(rank);
}

void mismatch(Rank& rank) {
  at::Tensor x = at::ones({is_last(rank) ? 500 : 600}, at::TensorOptions(at::kFloat).device(g_gpu));
  rank.world().all_reduce(device::to_buffer(x), Reduce::kSum).wait();
}

/// Seconds a call, of many in a row; the host's share of it; and what passes each rank's link in a second.
void speed(Rank& rank) {
  for (std::int64_t bytes = 4 << 10; bytes <= 256 << 20; bytes *= 8) {
    at::Tensor x = at::ones({bytes / 4}, at::TensorOptions(at::kFloat).device(g_gpu));
    const int calls = bytes < 1 << 20 ? 200 : 20;
    std::vector<double> host, whole;
    for (int turn = 0; turn < 6; ++turn) {
      device::synchronise(g_gpu);
      rank.world().barrier().wait();
      const auto before = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) rank.world().all_reduce(device::to_buffer(x), Reduce::kAvg).wait();
      host.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count() / calls);
      device::synchronise(g_gpu);
      whole.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count() / calls);
    }
    const auto median = [](std::vector<double>& of) {  // the first made the communicator
      std::sort(of.begin() + 1, of.end());
      return of[of.size() / 2 + 1];
    };
    if (rank.rank() != 0) continue;
    const double seconds = median(whole), n = rank.ranks();
    std::printf("all_reduce %9ld bytes on %d ranks: %9.1f us, host %7.1f us, %7.2f GB/s\n", static_cast<long>(bytes),
                rank.ranks(), seconds * 1e6, median(host) * 1e6,
                static_cast<double>(bytes) * 2 * (n - 1) / n / seconds / 1e9);
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::map<std::string, void (*)(Rank&)> bodies{
      {"collectives", collectives}, {"streams", streams},   {"graphs", graphs}, {"late", late},
      {"killed", killed},           {"mismatch", mismatch}, {"speed", speed}};
  if (count < 2 || !bodies.contains(arguments[1])) {
    std::fprintf(stderr, "usage: mpirun -n N gpu_ranks collectives|streams|graphs|late|killed|mismatch|speed\n");
    return 2;
  }
  const std::string what = arguments[1];
  comm::RanksOptions options;
  options.comm.flight_directory = "";
  options.comm.deadline = what == "late" ? 2s : 120s;
  comm::run_process_rank(
      comm::detect_launch(),
      [&](Rank& rank) {
        const int gpu = parallel::gpu_of_process(rank.world(), device::count_gpus());
        g_gpu = device::use_cuda(gpu);
        parallel::use_nccl(rank.world(), gpu);
        parallel::tell_nccl_of_shared_gpus(rank.world(), gpu);
        bodies.at(what)(rank);
        device::synchronise(g_gpu);
        rank.world().barrier().wait();
        if (rank.rank() == 0) std::printf("fine\n");
      },
      options);
  return 0;
}
