// How a checked call becomes an operation: which algorithm, which routine, which number.
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "trireme/base/error.h"
#include "trireme/comm/board_operation.h"
#include "trireme/comm/group.h"
#include "trireme/comm/guarded_operation.h"
#include "trireme/comm/rank.h"
#include "trireme/comm/routine_operation.h"

namespace trireme::comm {
namespace {

constexpr std::size_t kCachedRoutines = 256;
// Ranks that may send each other uneven blocks all at once: beyond it messages would crowd at every receiver.
constexpr int kAtOnce = 16;
// Tags of collectives count up and wrap; those of sends and receives have bit 30 set. Bit 29 is the
// transports' own.
constexpr std::uint32_t kPointTag = 0x4000'0000u, kTagMask = 0x1fff'ffffu;

bool has_blocks(Collective op) {
  return op == Collective::kReduceScatter || op == Collective::kAllGather || op == Collective::kAllToAll ||
         op == Collective::kGather || op == Collective::kScatter;
}

std::vector<std::size_t> offsets_of(std::span<const std::size_t> counts) {
  std::vector<std::size_t> offsets(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), offsets.begin() + 1);
  return offsets;
}

}  // namespace

struct Group::Internals {
  /// Routines are built once for calls that look the same.
  struct RoutineId {
    Collective op;
    Algorithm algorithm;
    std::int32_t root;
    std::uint64_t count, counts_hash, element;
    auto operator<=>(const RoutineId&) const = default;
  };

  std::unique_ptr<Board> board;                       // null: the ranks share no memory
  std::uint64_t board_sequence = 0;                   // collectives that went over it
  NativeOrder native_order;                           // of the transport library's own collectives
  std::vector<std::unique_ptr<BoardOperation>> free;  // to be used again: allocating one costs more than a small call
  std::map<RoutineId, std::shared_ptr<const Routine>> routines;  // shared with operations under way
  ScratchPool scratch;
};

Group::Group(Rank& owner, Members members, std::string name)
    : owner_(owner), members_(std::move(members)), name_(std::move(name)), internals_(std::make_unique<Internals>()) {
  const std::vector<int> nodes = owner_.transport().node_of();
  for (const int r : members_.ranks) node_of_.push_back(nodes[static_cast<std::size_t>(r)]);
  nodes_ = static_cast<int>(std::set<int>(node_of_.begin(), node_of_.end()).size());
  sends_to_ = std::make_unique<std::atomic<std::uint64_t>[]>(members_.ranks.size());
  receives_from_.assign(members_.ranks.size(), 0);
  {
    const auto lock = owner_.engine_.lock();
    owner_.transport().join(members_);
    internals_->board = owner_.transport().make_board(members_);
    board_ = internals_->board.get();
  }
  record_group_ = owner_.recorder_.add_group(name_);
  owner_.add(*this);
}

Group::~Group() {
  owner_.engine_.drain(*this);
  owner_.remove(*this);
  const auto lock = owner_.engine_.lock();
  owner_.transport().leave(members_);
}

std::string Group::refusal(Collective op, Algorithm algorithm) const {
  switch (algorithm) {
    case Algorithm::kAuto:
      return "";
    case Algorithm::kDirect:
      return board_ && board_->takes_large() ? "" : "not all ranks can read each other's memory";
    case Algorithm::kNative:
      if (owner_.transport().has_native(op_of(op))) return "";
      return fmt::format("transport {} has no {} of its own", owner_.transport().name(), cost::name(op));
    default:
      break;
  }
  const AlgorithmEntry* entry = find_algorithm(op, algorithm);
  if (entry == nullptr) return "the operation has no such algorithm";
  Shape shape{.op = op, .ranks = size(), .count = static_cast<std::size_t>(size()), .node_of = node_of_};
  shape.counts.assign(static_cast<std::size_t>(size()), 1);
  shape.recv_counts = shape.counts;
  return entry->refuses(shape);
}

std::vector<Algorithm> Group::algorithms(Collective op) const {
  std::vector<Algorithm> out;
  for (const Algorithm algorithm : cost::all_algorithms()) {
    if (algorithm != Algorithm::kAuto && refusal(op, algorithm).empty()) out.push_back(algorithm);
  }
  return out;
}

Algorithm Group::choose(Collective op, std::size_t bytes) const {
  // Training repeats the same few calls: a table of recent answers saves pricing every algorithm each time.
  Choice& recent = recent_choices_[(bytes / 64 * 31 + static_cast<std::size_t>(op)) % recent_choices_.size()];
  if (recent.algorithm != Algorithm::kAuto && recent.op == op && recent.bytes == bytes) return recent.algorithm;
  std::vector<Algorithm> candidates = algorithms(op);
  const bool slots_only = board_ && !board_->takes_large() && bytes <= board_->slot_bytes();
  if (slots_only) candidates.push_back(Algorithm::kDirect);
  const auto& costs = owner_.options().costs.of(owner_.transport().name());
  const Algorithm chosen =
      cost::choose(op, {.ranks = size(), .nodes = nodes_}, static_cast<double>(bytes), candidates, costs);
  recent = {.op = op, .bytes = bytes, .algorithm = chosen};
  return chosen;
}

Algorithm Group::settle_algorithm(const Request& request, const CallKey& key, Algorithm asked) const {
  if (asked == Algorithm::kAuto) asked = owner_.options().algorithm;
  if (key.place == DeviceKind::kCuda) {
    // Ranks that share a GPU reach each other's memory; others have a library for it.
    const Algorithm only = gpu() != nullptr ? Algorithm::kNative : Algorithm::kDirect;
    if (asked == Algorithm::kAuto || asked == only) return only;
    throw CommError(fmt::format("{} on group '{}': on a GPU there is no algorithm '{}'", cost::name(request.op), name_,
                                cost::name(asked)),
                    "leave the algorithm to 'auto'");
  }
  if (asked == Algorithm::kDirect && board_ && board_->takes_large()) return asked;
  if (asked == Algorithm::kNative && owner_.transport().has_native(op_of(request.op))) return asked;
  if (asked == Algorithm::kAuto) {
    // With uneven blocks every rank must come to the same choice without knowing all sizes: the most general algorithm
    // there is.
    if (request.uneven && board_ && board_->takes_large()) return Algorithm::kDirect;
    if (request.uneven) {
      // Few ranks send all blocks at once: latencies pass side by side, where rounds wait for each other.
      const bool few = size() <= kAtOnce;
      switch (request.op) {
        case Collective::kAllToAll:
          return few ? Algorithm::kLinear : Algorithm::kPairwise;
        case Collective::kAllGather:
          return few ? Algorithm::kLinear : Algorithm::kRing;
        case Collective::kGather:
        case Collective::kScatter:
          return Algorithm::kLinear;
        default:
          return Algorithm::kRing;
      }
    }
    return choose(request.op, key.count * size_of(key.type));
  }
  const AlgorithmEntry* entry = find_algorithm(request.op, asked);
  const auto known = [&] {
    std::string names;
    for (const Algorithm a : algorithms(request.op)) names += (names.empty() ? "" : ", ") + std::string(cost::name(a));
    return names;
  };
  if (entry == nullptr) {
    throw CommError(fmt::format("{} on group '{}': there is no algorithm '{}' for it here", cost::name(request.op),
                                name_, cost::name(asked)),
                    fmt::format("choose one of auto, {}", known()));
  }
  return asked;
}

std::shared_ptr<const Routine> Group::routine_for(const Request& request, const CallKey& key) {
  const bool cacheable = !(request.uneven && request.op == Collective::kAllToAll);
  const Internals::RoutineId id{.op = request.op,
                                .algorithm = key.algorithm,
                                .root = key.root,
                                .count = key.count,
                                .counts_hash = key.counts_hash,
                                .element = size_of(key.type)};
  if (cacheable) {
    if (const auto it = internals_->routines.find(id); it != internals_->routines.end()) return it->second;
  }
  const auto p = static_cast<std::size_t>(size());
  Shape shape{.op = request.op,
              .ranks = size(),
              .root = key.root,
              .count = key.count,
              .element_bytes = size_of(key.type),
              .segment_bytes = owner_.options().segment_bytes,
              .node_of = node_of_};
  shape.uneven = request.uneven;
  if (request.uneven) {
    shape.counts.assign(request.counts.begin(), request.counts.end());
    shape.recv_counts.assign(request.recv_counts.begin(), request.recv_counts.end());
  } else if (has_blocks(request.op)) {  // the others are cut by their builders, into blocks that may differ by one
    shape.counts.assign(p, key.count / p);
    shape.recv_counts = shape.counts;
  }
  const AlgorithmEntry* entry = find_algorithm(request.op, key.algorithm);
  TRIREME_CHECK(entry != nullptr, "no routine for {} with {}", cost::name(request.op), cost::name(key.algorithm));
  if (const std::string why = entry->refuses(shape); !why.empty()) {
    throw CommError(fmt::format("{} on group '{}' with algorithm {}: {}", cost::name(request.op), name_,
                                cost::name(key.algorithm), why),
                    "leave the algorithm to 'auto'");
  }
  auto routine = std::make_shared<const Routine>(entry->build(shape, rank()));
  if (cacheable) {
    if (internals_->routines.size() >= kCachedRoutines) internals_->routines.clear();
    internals_->routines[id] = routine;
  }
  return routine;
}

std::unique_ptr<Operation> Group::make_operation(const Request& request, Call& call) {
  if (call.key.algorithm == Algorithm::kDirect) {
    call.sequence = internals_->board_sequence++;
    std::unique_ptr<BoardOperation> operation;
    if (internals_->free.empty()) {
      operation = std::make_unique<BoardOperation>();
    } else {
      operation = std::move(internals_->free.back());
      internals_->free.pop_back();
    }
    operation->prepare(*board_, call);
    return operation;
  }
  if (call.key.place == DeviceKind::kCuda) {
    const bool on_board = board_ && size() > 1;  // one rank agrees with itself
    const GpuCallSite site{.host = owner_.transport(),
                           .members = members_,
                           .board = on_board ? board_ : nullptr,
                           .board_sequence = on_board ? internals_->board_sequence++ : 0,
                           .tag = static_cast<std::uint32_t>(calls()) & kTagMask};
    const auto lock = owner_.engine_.lock();
    return gpu()->make_collective(site, call);
  }
  if (call.key.algorithm == Algorithm::kNative) {
    const std::uint64_t board_sequence = board_ ? internals_->board_sequence++ : 0;
    return std::make_unique<GuardedOperation>(owner_.transport(), members_, board_, board_sequence, call,
                                              internals_->native_order);
  }
  return std::make_unique<RoutineOperation>(owner_.transport(), members_, routine_for(request, call.key), call,
                                            static_cast<std::uint32_t>(calls()) & kTagMask, internals_->scratch);
}

Work Group::collective(const Request& request, const CallOptions& options) {
  check_usable();
  check_request(request);
  Call call{.key = key_of(request), .in = request.in.data, .out = request.out.data};
  call.key.algorithm = settle_algorithm(request, call.key, options.algorithm);
  call.key.history = history_;
  const auto p = static_cast<std::size_t>(size());
  std::vector<std::size_t> offsets, recv_offsets;
  if (request.uneven) {
    offsets = offsets_of(request.counts);
    recv_offsets = offsets_of(request.recv_counts);
    call.blocks = {.offsets = offsets.data()};
    call.recv_blocks = {.offsets = recv_offsets.data()};
  } else {
    call.blocks = call.recv_blocks = {.equal = call.key.count / p};
  }
  std::unique_ptr<Operation> operation = make_operation(request, call);
  // Moving a vector keeps its elements where they are: the call's pointers stay good.
  operation->offsets_ = std::move(offsets);
  operation->recv_offsets_ = std::move(recv_offsets);
  history_ = next_history(call.key);
  call.sequence = sequence_.fetch_add(1, std::memory_order_relaxed);
  return start(std::move(operation), call, /*peer=*/-1, options);
}

Work Group::point(Op op, const void* in, void* out, std::size_t count, DType type, Device device, int peer, int tag,
                  const CallOptions& options) {
  check_usable();
  check_device(device, comm::name(op));
  if (peer < 0 || peer >= size() || tag < 0 || static_cast<std::uint32_t>(tag) > kTagMask) {
    throw CommError(fmt::format("{} on group '{}': rank {} must be in 0..{} and tag {} in 0..{}", comm::name(op), name_,
                                peer, size() - 1, tag, kTagMask));
  }
  const bool is_send = op == Op::kSend;
  if (device.kind == DeviceKind::kCuda && gpu() != nullptr && static_cast<std::uint32_t>(tag) > gpu()->largest_tag()) {
    throw CommError(fmt::format("{} on group '{}': tag {} of a message on a GPU must be in 0..{}", comm::name(op),
                                name_, tag, gpu()->largest_tag()));
  }
  if (count != 0 && (is_send ? in : out) == nullptr) {
    throw CommError(
        fmt::format("{} on group '{}': a buffer with elements has no memory (null pointer)", comm::name(op), name_));
  }
  // Both sides carry the send's key: what must agree is type, count and tag.
  const Call call{
      .key = {.op = Op::kSend, .type = type, .place = device.kind, .root = tag, .count = count}, .in = in, .out = out};
  Call recorded = call;
  recorded.key.op = op;
  recorded.sequence = is_send ? sends_to_[static_cast<std::size_t>(peer)].fetch_add(1, std::memory_order_relaxed)
                              : receives_from_[static_cast<std::size_t>(peer)]++;
  if (device.kind == DeviceKind::kCuda && gpu() != nullptr) {
    const GpuCallSite site{
        .host = owner_.transport(), .members = members_, .tag = kPointTag | static_cast<std::uint32_t>(tag)};
    Call numbered = call;
    numbered.sequence = recorded.sequence;
    std::unique_ptr<Operation> operation;
    {
      const auto lock = owner_.engine_.lock();
      operation = gpu()->make_message(site, numbered, is_send, peer);
    }
    return start(std::move(operation), recorded, peer, options);
  }
  const Slice slice{.space = is_send ? Space::kInput : Space::kOutput, .begin = 0, .count = count};
  Routine routine;
  routine.steps.push_back({.act = is_send ? Act::kSend : Act::kRecv, .peer = peer, .from = slice, .to = slice});
  routine.steps.push_back({.act = Act::kWait, .on = 0});
  auto operation = std::make_unique<RoutineOperation>(owner_.transport(), members_,
                                                      std::make_shared<const Routine>(std::move(routine)), call,
                                                      kPointTag | static_cast<std::uint32_t>(tag), internals_->scratch);
  return start(std::move(operation), recorded, peer, options);
}

Work Group::start(std::unique_ptr<Operation> owned, const Call& call, int peer, const CallOptions& options) {
  Operation& operation = *owned.release();  // now the Work's; recycle() takes it back
  operation.status_.store(Operation::Status::kPending, std::memory_order_relaxed);
  operation.group_ = this;
  operation.key_ = call.key;
  operation.sequence_ = call.sequence;
  operation.peer_ = peer;
  operation.started_ns_ = now_ns();
  const auto deadline = options.deadline.value_or(owner_.options().deadline);
  operation.deadline_ns_ = operation.started_ns_ + std::chrono::nanoseconds(deadline).count();
  operation.record_ = owner_.recorder_.begin(record_group_, call.key, call.sequence, peer < 0 ? -1 : world_rank(peer),
                                             operation.started_ns_);
  Work work(operation);
  owner_.engine_.submit(operation);
  if (operation.blocks_caller()) owner_.engine_.wait(operation);  // an error is told by the work's own wait()
  return work;
}

void Group::recycle(Operation& operation) noexcept {
  operation.error_ = nullptr;
  if (auto* board_operation = dynamic_cast<BoardOperation*>(&operation)) {
    internals_->free.emplace_back(board_operation);
  } else {
    // Its transfers give back what they borrowed from the transport, which the background thread uses too.
    const auto lock = owner_.engine_.lock();
    delete &operation;
  }
}

void Group::settled(Operation& operation, bool done) {
  operation.ended_ns_ = now_ns();
  if (done && operation.continues_on_gpu()) {
    owner_.recorder_.given(operation.record_);
  } else {
    owner_.recorder_.end(operation.record_, done ? Recorder::State::kDone : Recorder::State::kFailed,
                         operation.ended_ns_);
  }
  if (!done) return;
  auto& c = counters_[static_cast<std::size_t>(operation.key_.op)];
  constexpr auto kRelaxed = std::memory_order_relaxed;
  // One writer at a time (the engine's lock): plain adds, no locked instructions.
  const auto add = [](std::atomic<std::uint64_t>& counter, std::uint64_t n) {
    counter.store(counter.load(kRelaxed) + n, kRelaxed);
  };
  if (!operation.follows_) {
    add(c.calls, 1);
    add(c.bytes, operation.key_.count * size_of(operation.key_.type));
    add(c.sent_bytes, operation.sent_bytes());
  }
  if (operation.continues_on_gpu()) return;
  add(c.nanoseconds, static_cast<std::uint64_t>(operation.ended_ns_ - operation.started_ns_));
}

void Group::poison(const std::exception_ptr& error) {
  if (poisoned_.load(std::memory_order_relaxed)) return;
  poison_ = error;
  poisoned_.store(true, std::memory_order_release);
}

std::uint64_t Group::least_sent_bytes(const Call& call) const {
  if (!is_collective(call.key.op)) return 0;
  const std::size_t element = call.element();
  if (call.key.op == Op::kAllToAll && call.blocks.offsets != nullptr) {
    return (call.blocks.offsets[size()] - call.blocks.count(rank())) * element;
  }
  return static_cast<std::uint64_t>(
      cost::wire_bytes(collective_of(call.key.op), size(), static_cast<double>(call.key.count * element)));
}

Group& group_of(const Operation& operation) { return *operation.group_; }

std::string describe(const Operation& operation) {
  const Group& group = *operation.group_;
  std::string text = describe(operation.key_);
  if (operation.key_.op == Op::kSend) text += fmt::format(" to rank {}", group.world_rank(operation.peer_));
  if (operation.key_.op == Op::kRecv) text += fmt::format(" from rank {}", group.world_rank(operation.peer_));
  return fmt::format("{}, number {} of group '{}'", text, operation.sequence_, group.name());
}

void Group::raise_mismatch(const Operation& operation, int other, const CallKey& theirs) const {
  CallKey mine = operation.key_;
  if (mine.op == Op::kRecv) mine.op = Op::kSend;
  throw CommError(
      fmt::format("ranks {} and {} do not agree on call number {} of group '{}': rank {} called {}, rank {} "
                  "called {} ({})",
                  world_rank(rank()), world_rank(other), operation.sequence_, name_, world_rank(rank()), describe(mine),
                  world_rank(other), describe(theirs), difference(mine, theirs)),
      "all ranks of a group must make the same calls in the same order");
}

void Group::raise_size_mismatch(const Operation& operation, int other, std::size_t theirs, std::size_t mine) const {
  throw CommError(
      fmt::format("ranks {} and {} do not agree on sizes in {}: rank {} sent {} bytes where rank {} expected {}",
                  world_rank(rank()), world_rank(other), describe(operation), world_rank(other), theirs,
                  world_rank(rank()), mine),
      "what a rank receives must be as long as what was sent to it");
}

std::unique_ptr<Group> Group::split(int color, int key, const std::string& name) {
  struct Entry {
    std::int64_t color, key, channel;
  };
  const auto p = static_cast<std::size_t>(size());
  const Entry mine{.color = color, .key = key, .channel = 0};
  std::vector<Entry> all(p);
  const auto exchange = [&](const Entry& entry) {
    all_gather(ConstBuffer{&entry, sizeof entry, DType::kU8}, Buffer{all.data(), p * sizeof entry, DType::kU8}).wait();
  };
  exchange(mine);
  std::vector<int> chosen;
  for (int r = 0; r < size(); ++r) {
    if (all[static_cast<std::size_t>(r)].color == color) chosen.push_back(r);
  }
  std::stable_sort(chosen.begin(), chosen.end(), [&](int a, int b) {
    return all[static_cast<std::size_t>(a)].key < all[static_cast<std::size_t>(b)].key;
  });
  // The first of each new group draws its number; then everyone knows it, and that everyone is here.
  Entry numbered = mine;
  if (color >= 0 && chosen.front() == rank()) numbered.channel = owner_.control().add("trireme/channels", 1);
  exchange(numbered);
  if (color < 0) return nullptr;

  Members members;
  members.channel = static_cast<std::uint32_t>(all[static_cast<std::size_t>(chosen.front())].channel);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    members.ranks.push_back(world_rank(chosen[i]));
    if (chosen[i] == rank()) members.me = static_cast<int>(i);
  }
  return std::unique_ptr<Group>(new Group(owner_, std::move(members), name));
}

}  // namespace trireme::comm
