// A stand-in for NCCL with the same interface, for ranks that are threads or processes of one machine, on host memory.
//
// Communicators meet in POSIX shared memory, with one ring of bytes from each rank to each other. As NCCL's, they are
// non-blocking when asked to be, calls given to them run later on their stream and wait there for the other ranks, and
// abort ends what waits. Every message says how long it is, so calls that do not match are found rather than survived.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/fake_nccl/fake_gpu.h"
#include "tests/comm/values.h"
#include "trireme/comm/nccl/nccl_abi.h"

using namespace trireme;
using namespace trireme::comm::nccl;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kRingBytes = 64 << 10;

struct Ring {
  alignas(64) std::atomic<std::uint64_t> written{0};
  alignas(64) std::atomic<std::uint64_t> read{0};
  alignas(64) std::byte bytes[kRingBytes];
};

struct Shared {
  std::atomic<int> attached{0};
  alignas(64) Ring rings[1];  // ranks x ranks, from and to
};

std::mutex g_mutex;
fake::Misbehaviour g_misbehaviour;
std::atomic<std::uint64_t> g_made, g_destroyed, g_aborted, g_registered, g_deregistered, g_calls;

fake::Misbehaviour misbehaviour_of(int rank) {
  const std::lock_guard lock(g_mutex);
  return g_misbehaviour.rank < 0 || g_misbehaviour.rank == rank ? g_misbehaviour : fake::Misbehaviour{};
}

comm::DType our_type(DataType type) {
  switch (type) {
    case kUint8:
      return comm::DType::kU8;
    case kInt32:
      return comm::DType::kI32;
    case kInt64:
      return comm::DType::kI64;
    case kFloat16:
      return comm::DType::kF16;
    case kFloat32:
      return comm::DType::kF32;
    case kFloat64:
      return comm::DType::kF64;
    case kBfloat16:
      return comm::DType::kBF16;
  }
  return comm::DType::kU8;
}

struct Op {
  enum Kind { kAllReduceOp, kReduceOp, kBroadcastOp, kReduceScatterOp, kAllGatherOp, kSendOp, kRecvOp } kind;
  const void* in;
  void* out;
  std::size_t count;
  comm::DType type;
  RedOp reduce;
  int peer;
};

/// Bytes to or from one rank, after a word that says how many.
struct Message {
  std::byte* data;
  std::uint64_t bytes;
  std::uint64_t moved = 0;  // including the word
  std::uint64_t word = 0;   // as received
};

std::byte* bytes_at(const void* data, std::size_t offset = 0) {
  return static_cast<std::byte*>(const_cast<void*>(data)) + offset;
}

}  // namespace

namespace trireme::comm::nccl {

/// What a communicator and the calls on their way share.
struct Comm {
  int ranks = 0, rank = 0;
  bool blocking = true;
  std::string name;
  Shared* shared = nullptr;
  std::size_t shared_bytes = 0;
  std::atomic<int> state{kSuccess};
  std::atomic<bool> aborted{false};
  std::atomic<std::uint64_t> ran{0};
  std::thread helper;  // makes the communicator, or hands a call to its stream
  std::map<void*, std::size_t> registered;

  ~Comm() {
    if (helper.joinable()) helper.join();
    if (shared != nullptr) munmap(shared, shared_bytes);
  }

  Ring& ring(int from, int to) { return (&shared->rings[0])[from * ranks + to]; }

  void attach() {
    shared_bytes = sizeof(Shared) + sizeof(Ring) * static_cast<std::size_t>(ranks * ranks);
    const int file = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, static_cast<off_t>(shared_bytes)) != 0) {
      state = kSystemError;
      return;
    }
    void* at = mmap(nullptr, shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (at == MAP_FAILED) {
      state = kSystemError;
      return;
    }
    shared = static_cast<Shared*>(at);  // zero, which is how its atomics begin
    shared->attached.fetch_add(1);
    while (shared->attached.load() < ranks) {
      if (aborted) return;
      std::this_thread::sleep_for(100us);
    }
    if (rank == 0) shm_unlink(name.c_str());
    state = kSuccess;
  }

  /// As far as the rings allow; whether anything moved.
  bool push(Message& message, int to) {
    Ring& ring = this->ring(rank, to);
    const std::uint64_t total = message.bytes + sizeof message.word;
    const std::uint64_t room = kRingBytes - (ring.written.load() - ring.read.load(std::memory_order_acquire));
    const std::uint64_t now = std::min(room, total - message.moved);
    const auto* word = reinterpret_cast<const std::byte*>(&message.bytes);
    for (std::uint64_t i = 0; i < now; ++i, ++message.moved) {
      const std::byte byte =
          message.moved < sizeof message.word ? word[message.moved] : message.data[message.moved - sizeof message.word];
      ring.bytes[(ring.written.load(std::memory_order_relaxed) + i) % kRingBytes] = byte;
    }
    ring.written.fetch_add(now, std::memory_order_release);
    return now != 0;
  }
  bool pull(Message& message, int from) {
    Ring& ring = this->ring(from, rank);
    const std::uint64_t total = message.bytes + sizeof message.word;
    const std::uint64_t there = ring.written.load(std::memory_order_acquire) - ring.read.load();
    const std::uint64_t now = std::min(there, total - message.moved);
    auto* word = reinterpret_cast<std::byte*>(&message.word);
    for (std::uint64_t i = 0; i < now; ++i, ++message.moved) {
      if (message.moved == sizeof message.word && message.word != message.bytes) break;
      const std::byte byte = ring.bytes[(ring.read.load(std::memory_order_relaxed) + i) % kRingBytes];
      (message.moved < sizeof message.word ? word[message.moved] : message.data[message.moved - sizeof message.word]) =
          byte;
    }
    ring.read.fetch_add(now, std::memory_order_release);
    if (message.moved >= sizeof message.word && message.word != message.bytes) {
      std::fprintf(stderr, "fake NCCL: rank %d expected %lu bytes from %d, which sent %lu\n", rank,
                   static_cast<unsigned long>(message.bytes), from, static_cast<unsigned long>(message.word));
      state = kInternalError;
      aborted = true;
    }
    return now != 0;
  }

  void exchange(std::vector<std::deque<Message>>& sends, std::vector<std::deque<Message>>& receives) {
    const auto finished = [](const Message& m) { return m.moved == m.bytes + sizeof m.word; };
    while (!aborted) {
      bool open = false, moved = false;
      for (int r = 0; r < ranks; ++r) {
        for (auto* lane : {&sends[static_cast<std::size_t>(r)], &receives[static_cast<std::size_t>(r)]}) {
          if (lane->empty()) continue;
          open = true;
          moved |= lane == &sends[static_cast<std::size_t>(r)] ? push(lane->front(), r) : pull(lane->front(), r);
          if (finished(lane->front())) lane->pop_front();
        }
      }
      if (!open) return;
      if (!moved) std::this_thread::sleep_for(20us);
    }
  }

  /// What the "kernel" of a group of calls does on its stream.
  void run(const std::vector<Op>& ops) {
    const std::uint64_t number = ran.fetch_add(1) + 1;
    const fake::Misbehaviour how = misbehaviour_of(rank);
    if (how.slow_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(how.slow_ms));
    while (how.hangs_from != 0 && number >= how.hangs_from && !aborted) std::this_thread::sleep_for(1ms);
    if (aborted) return;

    const auto n = static_cast<std::size_t>(ranks);
    std::vector<std::deque<Message>> sends(n), receives(n);
    std::deque<std::vector<std::byte>> aside;  // what arrived to be combined, by op and rank
    const auto send = [&](int to, const void* data, std::size_t bytes) {
      sends[static_cast<std::size_t>(to)].push_back({bytes_at(data), bytes});
    };
    const auto receive = [&](int from, void* data, std::size_t bytes) {
      receives[static_cast<std::size_t>(from)].push_back({bytes_at(data), bytes});
    };
    const auto combines = [&](const Op& op) {
      return op.kind == Op::kAllReduceOp || op.kind == Op::kReduceScatterOp ||
             (op.kind == Op::kReduceOp && op.peer == rank);
    };
    for (const Op& op : ops) {
      const std::size_t bytes = op.count * size_of(op.type);
      if (op.kind == Op::kSendOp) send(op.peer, op.in, bytes);
      if (op.kind == Op::kRecvOp) receive(op.peer, op.out, bytes);
      if (op.kind == Op::kReduceOp && op.peer != rank) send(op.peer, op.in, bytes);
      for (int r = 0; r < ranks; ++r) {
        const std::size_t block = bytes * static_cast<std::size_t>(r);
        if (combines(op)) aside.emplace_back(bytes);
        if (r == rank) {
          const std::size_t own = op.kind == Op::kReduceScatterOp ? block : 0;
          if (combines(op)) std::memcpy(aside.back().data(), bytes_at(op.in, own), bytes);
          continue;
        }
        if (op.kind == Op::kAllReduceOp || op.kind == Op::kAllGatherOp) send(r, op.in, bytes);
        if (op.kind == Op::kReduceScatterOp) send(r, bytes_at(op.in, block), bytes);
        if (op.kind == Op::kBroadcastOp && op.peer == rank) send(r, op.in, bytes);
        if (combines(op)) receive(r, aside.back().data(), bytes);
        if (op.kind == Op::kAllGatherOp) receive(r, bytes_at(op.out, block), bytes);
        if (op.kind == Op::kBroadcastOp && op.peer == r) receive(r, op.out, bytes);
      }
    }
    exchange(sends, receives);
    if (aborted) return;
    for (const Op& op : ops) {
      const std::size_t bytes = op.count * size_of(op.type);
      const std::size_t own = op.kind == Op::kAllGatherOp ? bytes * static_cast<std::size_t>(rank) : 0;
      const bool passes = op.kind == Op::kAllGatherOp || (op.kind == Op::kBroadcastOp && op.peer == rank);
      if (passes && bytes_at(op.out, own) != op.in) std::memcpy(bytes_at(op.out, own), op.in, bytes);
      if (!combines(op)) continue;
      for (std::size_t i = 0; i < op.count; ++i) combine(op, aside, i);
      aside.erase(aside.begin(), aside.begin() + ranks);
    }
  }

  void combine(const Op& op, const std::deque<std::vector<std::byte>>& parts, std::size_t i) {
    const std::size_t at = i * size_of(op.type);
    double total = comm::read_value(op.type, parts[0].data() + at);
    for (std::size_t r = 1; r < static_cast<std::size_t>(ranks); ++r) {
      const double next = comm::read_value(op.type, parts[r].data() + at);
      switch (op.reduce) {
        case kSum:
        case kAvg:
          total += next;
          break;
        case kProd:
          total *= next;
          break;
        case kMax:
          total = std::max(total, next);
          break;
        case kMin:
          total = std::min(total, next);
          break;
      }
    }
    if (op.reduce == kAvg) {
      total /= ranks;
      if (!comm::is_float(op.type)) total = static_cast<double>(static_cast<std::int64_t>(total));
    }
    comm::write_value(op.type, total, bytes_at(op.out, at));
  }
};

}  // namespace trireme::comm::nccl

namespace {

using Handle = std::shared_ptr<Comm>;  // shared by the caller and the calls on their way
std::map<Comm*, Handle> g_comms;

Handle handle_of(Comm* comm) {
  const std::lock_guard lock(g_mutex);
  return g_comms.at(comm);
}
void drop(Comm* comm) {
  Handle kept;  // its end may wait for its helper: not under the lock
  const std::lock_guard lock(g_mutex);
  kept = g_comms.at(comm);
  g_comms.erase(comm);
}

struct Given {
  Op op;
  Comm* comm;
  Stream stream;
};
thread_local int g_depth = 0;
thread_local std::vector<Given> g_given;

Result end_group() {
  std::map<std::pair<Comm*, Stream>, std::vector<Op>> by_comm;
  for (const Given& given : g_given) by_comm[{given.comm, given.stream}].push_back(given.op);
  g_given.clear();
  Result result = kSuccess;
  for (auto& [where, ops] : by_comm) {
    const Handle comm = handle_of(where.first);
    const Stream stream = where.second;
    const fake::Misbehaviour how = misbehaviour_of(comm->rank);
    if (how.call_result != 0) return static_cast<Result>(how.call_result);
    if (comm->state == kInProgress) return kInvalidUsage;  // NCCL takes nothing while something is under way
    ++g_calls;
    bool captured = false;
    fake::trireme_fake_gpu()->cuda.is_capturing(stream, &captured);
    std::optional<fake::Turn> turn;  // a graph's branches run one after the other anyway
    if (!captured) turn.emplace(fake::current_gpu());
    auto give = [comm, stream, calls = std::move(ops), how, turn] {
      fake::enqueue(stream, [comm, calls, turn] {
        if (turn) turn->wait(comm->aborted);
        comm->run(calls);
        if (turn) turn->finish();
      });
      comm->state = how.later_result;
    };
    if (comm->blocking) {
      give();
      continue;
    }
    if (comm->helper.joinable()) comm->helper.join();
    comm->state = kInProgress;
    comm->helper = std::thread([give] {
      std::this_thread::sleep_for(50us);  // long enough for a mark that was made too early to overtake the call
      give();
    });
    result = kInProgress;
  }
  return result;
}

Result give(const Op& op, Comm* comm, Stream stream) {
  if (op.count == 0) return kSuccess;
  g_given.push_back({op, comm, stream});
  return g_depth == 0 ? end_group() : kSuccess;
}

}  // namespace

#define FAKE __attribute__((visibility("default")))

extern "C" {

FAKE Result ncclGetVersion(int* version) {
  *version = 22809;
  return kSuccess;
}
FAKE const char* ncclGetErrorString(Result result) {
  constexpr const char* kNames[] = {"no error",       "unhandled cuda error", "unhandled system error",
                                    "internal error", "invalid argument",     "invalid usage",
                                    "remote error",   "in progress"};
  return kNames[result];
}
FAKE const char* ncclGetLastError(Comm*) { return ""; }

FAKE Result ncclGetUniqueId(UniqueId* id) {
  std::random_device random;
  std::snprintf(id->internal, sizeof id->internal, "/trireme-fake-nccl-%d-%08x%08x", getpid(), random(), random());
  return kSuccess;
}

FAKE Result ncclCommInitRankConfig(Comm** out, int ranks, UniqueId id, int rank, Config* config) {
  const fake::Misbehaviour how = misbehaviour_of(rank);
  if (config->magic != 0xcafebeef) return kInvalidArgument;
  if (how.init_result != 0) return static_cast<Result>(how.init_result);
  ++g_made;
  auto comm = std::make_shared<Comm>();
  comm->ranks = ranks;
  comm->rank = rank;
  comm->blocking = config->blocking != 0;
  comm->name = id.internal;
  comm->state = kInProgress;
  *out = comm.get();
  Comm* raw = comm.get();
  {
    const std::lock_guard lock(g_mutex);
    g_comms[raw] = comm;
  }
  raw->helper = std::thread([raw, how] {
    while (how.init_hangs && !raw->aborted) std::this_thread::sleep_for(1ms);
    if (!raw->aborted) raw->attach();
  });
  if (!comm->blocking) return kInProgress;
  raw->helper.join();
  return static_cast<Result>(raw->state.load());
}

FAKE Result ncclCommGetAsyncError(Comm* comm, Result* error) {
  *error = static_cast<Result>(handle_of(comm)->state.load());
  return kSuccess;
}
FAKE Result ncclCommFinalize(Comm* comm) {
  const Handle its = handle_of(comm);
  if (its->helper.joinable()) its->helper.join();
  if (!its->registered.empty()) return kInvalidUsage;
  return kSuccess;
}
FAKE Result ncclCommDestroy(Comm* comm) {
  ++g_destroyed;
  drop(comm);
  return kSuccess;
}
FAKE Result ncclCommAbort(Comm* comm) {
  ++g_aborted;
  const Handle its = handle_of(comm);
  its->aborted = true;
  if (its->helper.joinable()) its->helper.join();
  drop(comm);
  return kSuccess;
}

FAKE Result ncclCommRegister(Comm* comm, void* data, std::size_t bytes, void** handle) {
  ++g_registered;
  handle_of(comm)->registered[data] = bytes;
  *handle = data;
  return kSuccess;
}
FAKE Result ncclCommDeregister(Comm* comm, void* handle) {
  ++g_deregistered;
  return handle_of(comm)->registered.erase(handle) == 1 ? kSuccess : kInvalidArgument;
}

FAKE Result ncclGroupStart() {
  ++g_depth;
  return kSuccess;
}
FAKE Result ncclGroupEnd() { return --g_depth == 0 ? end_group() : kSuccess; }

FAKE Result ncclAllReduce(const void* in, void* out, std::size_t count, DataType type, RedOp op, Comm* comm,
                          Stream stream) {
  return give({Op::kAllReduceOp, in, out, count, our_type(type), op, -1}, comm, stream);
}
FAKE Result ncclReduce(const void* in, void* out, std::size_t count, DataType type, RedOp op, int root, Comm* comm,
                       Stream stream) {
  return give({Op::kReduceOp, in, out, count, our_type(type), op, root}, comm, stream);
}
FAKE Result ncclBroadcast(const void* in, void* out, std::size_t count, DataType type, int root, Comm* comm,
                          Stream stream) {
  return give({Op::kBroadcastOp, in, out, count, our_type(type), kSum, root}, comm, stream);
}
FAKE Result ncclReduceScatter(const void* in, void* out, std::size_t count, DataType type, RedOp op, Comm* comm,
                              Stream stream) {
  return give({Op::kReduceScatterOp, in, out, count, our_type(type), op, -1}, comm, stream);
}
FAKE Result ncclAllGather(const void* in, void* out, std::size_t count, DataType type, Comm* comm, Stream stream) {
  return give({Op::kAllGatherOp, in, out, count, our_type(type), kSum, -1}, comm, stream);
}
FAKE Result ncclSend(const void* data, std::size_t count, DataType type, int peer, Comm* comm, Stream stream) {
  return give({Op::kSendOp, data, nullptr, count, our_type(type), kSum, peer}, comm, stream);
}
FAKE Result ncclRecv(void* data, std::size_t count, DataType type, int peer, Comm* comm, Stream stream) {
  return give({Op::kRecvOp, nullptr, data, count, our_type(type), kSum, peer}, comm, stream);
}

}  // extern "C"

namespace trireme::fake {

extern "C" void trireme_fake_nccl_misbehave(const Misbehaviour* how) {
  const std::lock_guard lock(g_mutex);
  g_misbehaviour = *how;
}
extern "C" Usage trireme_fake_nccl_usage() {
  return {.communicators = g_made,
          .destroyed = g_destroyed,
          .aborted = g_aborted,
          .registered = g_registered,
          .deregistered = g_deregistered,
          .calls = g_calls};
}

}  // namespace trireme::fake
