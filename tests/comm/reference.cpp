#include "tests/comm/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/comm/values.h"

namespace trireme::comm {
namespace {

constexpr std::byte kGuard{0xA5};
constexpr std::size_t kGuardBytes = 64;

double average(DType type, double sum, int ranks) {
  if (type == DType::kF64) return sum / ranks;
  if (is_float(type)) return static_cast<float>(sum) / static_cast<float>(ranks);
  return std::trunc(sum / ranks);
}

double combined(const Case& c, int ranks, std::size_t i) {
  double result = input_value(c, 0, i);
  for (int r = 1; r < ranks; ++r) {
    const double next = input_value(c, r, i);
    switch (c.reduce) {
      case Reduce::kSum:
      case Reduce::kAvg:
        result += next;
        break;
      case Reduce::kMin:
        result = std::min(result, next);
        break;
      case Reduce::kMax:
        result = std::max(result, next);
        break;
      case Reduce::kProd:
        result *= next;
        break;
    }
  }
  return c.reduce == Reduce::kAvg ? average(c.type, result, ranks) : result;
}

/// Elements before the block that `from` keeps for `to`.
std::size_t begin_of(const Case& c, int from, int to) {
  std::size_t begin = 0;
  for (int r = 0; r < to; ++r) begin += block_of(c, from, r);
  return begin;
}

std::size_t input_count(const Case& c, int ranks, int rank) {
  switch (c.op) {
    case Op::kAllGather:
    case Op::kGather:
      return block_of(c, 0, rank);
    case Op::kScatter:
      return rank == c.root ? begin_of(c, 0, ranks) : 0;
    case Op::kReduceScatter:
    case Op::kAllToAll:
      return begin_of(c, rank, ranks);
    case Op::kBroadcast:
      return rank == c.root ? c.count : 0;
    case Op::kBarrier:
    case Op::kRecv:
      return 0;
    default:
      return c.count;
  }
}

/// Appends elements [begin, begin + count) of a rank's input.
void append_input(std::vector<std::byte>& out, const Case& c, int rank, std::size_t begin, std::size_t count) {
  const std::size_t element = size_of(c.type), at = out.size();
  out.resize(at + count * element);
  for (std::size_t i = 0; i < count; ++i) {
    write_value(c.type, input_value(c, rank, begin + i), out.data() + at + i * element);
  }
}

std::vector<std::byte> combination(const Case& c, int ranks, std::size_t begin, std::size_t count) {
  const std::size_t element = size_of(c.type);
  std::vector<std::byte> out(count * element);
  for (std::size_t i = 0; i < count; ++i) write_value(c.type, combined(c, ranks, begin + i), out.data() + i * element);
  return out;
}

}  // namespace

bool is_blocked(Op op) {
  return op == Op::kReduceScatter || op == Op::kAllGather || op == Op::kAllToAll || op == Op::kGather ||
         op == Op::kScatter;
}
bool is_rooted(Op op) { return op == Op::kBroadcast || op == Op::kReduce || op == Op::kGather || op == Op::kScatter; }

std::string to_text(const Case& c) {
  std::string text = fmt::format("{}{} of {} x {}{} ({}", name(c.op), c.uneven ? "_v" : "", c.count, name(c.type),
                                 is_blocked(c.op) ? " a block" : "", cost::name(c.algorithm));
  if (reduces(c.op)) text += fmt::format(", {}", name(c.reduce));
  if (is_rooted(c.op)) text += fmt::format(", root {}", c.root);
  if (!is_collective(c.op)) text += fmt::format(", with rank {}, tag {}", c.root, c.tag);
  if (c.in_place) text += ", in place";
  return text + fmt::format(", seed {})", c.seed);
}

std::size_t block_of(const Case& c, int from, int to) {
  if (!c.uneven) return c.count;
  const auto f = static_cast<std::uint64_t>(c.op == Op::kAllToAll ? from : 0);
  const std::uint64_t h = hash_of({c.seed, f, static_cast<std::uint64_t>(to)});
  return h % 4 == 0 ? 0 : (h >> 8) % (2 * c.count + 1);  // an empty block now and then
}

double input_value(const Case& c, int rank, std::size_t i) {
  std::uint64_t x = (c.seed * 31 + static_cast<std::uint64_t>(rank)) * 0x9e3779b97f4a7c15ull + i;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 29;
  x *= 0x94d049bb133111ebull;
  const auto below = [&](std::uint64_t n) { return static_cast<double>(((x >> 32) * n) >> 32); };
  const bool has_sign = c.type != DType::kU8;
  // Whole numbers up to 256 are exact in every type, and so must be every sum and product of nine of them.
  if (!reduces(c.op)) return has_sign ? below(251) - 100 : below(251);
  if (c.reduce != Reduce::kProd) return has_sign ? below(20) - 10 : below(20);
  constexpr double kFactors[] = {1, 1, -1, -1, 2, -2, 1, 0};
  const double factor = kFactors[(x >> 32) % 8];
  return has_sign ? factor : std::abs(factor);
}

std::vector<std::byte> input_of(const Case& c, int ranks, int rank) {
  std::vector<std::byte> out;
  append_input(out, c, rank, 0, input_count(c, ranks, rank));
  return out;
}

std::vector<std::byte> output_of(const Case& c, int ranks, int rank) {
  std::vector<std::byte> out;
  switch (c.op) {
    case Op::kAllReduce:
      return combination(c, ranks, 0, c.count);
    case Op::kReduce:
      return rank == c.root ? combination(c, ranks, 0, c.count) : out;
    case Op::kReduceScatter:
      return combination(c, ranks, begin_of(c, 0, rank), block_of(c, 0, rank));
    case Op::kGather:
      if (rank != c.root) return out;
      [[fallthrough]];
    case Op::kAllGather:
      for (int r = 0; r < ranks; ++r) append_input(out, c, r, 0, block_of(c, 0, r));
      return out;
    case Op::kScatter:
      append_input(out, c, c.root, begin_of(c, 0, rank), block_of(c, 0, rank));
      return out;
    case Op::kAllToAll:
      for (int r = 0; r < ranks; ++r) append_input(out, c, r, begin_of(c, r, rank), block_of(c, r, rank));
      return out;
    case Op::kBroadcast:
    case Op::kRecv:
      append_input(out, c, c.root, 0, c.count);
      return out;
    case Op::kBarrier:
    case Op::kSend:
      return out;
  }
  return out;
}

Memory::Memory(DType type, std::size_t bytes, std::uint64_t seed)
    : size_(bytes), begin_(kGuardBytes + seed % 8 * size_of(type)), bytes_(bytes + 2 * kGuardBytes + 64, kGuard) {}

Memory::Memory(DType type, const std::vector<std::byte>& contents, std::uint64_t seed)
    : Memory(type, contents.size(), seed) {
  std::ranges::copy(contents, data());
}

bool Memory::is_intact() const {
  const auto is_guard = [](std::byte b) { return b == kGuard; };
  return std::all_of(bytes_.data(), data(), is_guard) &&
         std::all_of(data() + size_, bytes_.data() + bytes_.size(), is_guard);
}

Trial::Trial(const Case& c, int ranks, int rank)
    : case_(c),
      ranks_(ranks),
      rank_(rank),
      in_(c.type, input_of(c, ranks, rank), c.seed),
      out_(c.type, output_of(c, ranks, rank).size(), c.seed / 8) {
  for (int r = 0; r < ranks; ++r) counts_.push_back(block_of(c, rank, r));
  for (int r = 0; r < ranks; ++r) recv_counts_.push_back(block_of(c, r, rank));
  const bool is_root = rank == c.root;
  if (c.op == Op::kBroadcast) {
    if (is_root) std::memcpy(out_.data(), in_.data(), in_.size());
    return;
  }
  if (!c.in_place) return;
  at_ = begin_of(c, 0, rank) * size_of(c.type);
  if (c.op == Op::kAllReduce || (c.op == Op::kReduce && is_root)) {
    overlap_ = Overlap::kOutInIn;
    at_ = 0;
  } else if (c.op == Op::kReduceScatter || (c.op == Op::kScatter && is_root)) {
    overlap_ = Overlap::kOutInIn;
  } else if (c.op == Op::kAllGather || (c.op == Op::kGather && is_root)) {
    overlap_ = Overlap::kInInOut;
    std::memcpy(out_.data() + at_, in_.data(), in_.size());
  }
}

Work Trial::start(Group& group) {
  const std::size_t element = size_of(case_.type);
  void* in_data = overlap_ == Overlap::kInInOut ? out_.data() + at_ : in_.data();
  void* out_data = overlap_ == Overlap::kOutInIn ? in_.data() + at_ : out_.data();
  ConstBuffer in{in_data, in_.size() / element, case_.type, case_.place.device};
  Buffer out{out_data, out_.size() / element, case_.type, case_.place.device};
  // A rank that is not the root may leave out what only the root has.
  if (case_.seed % 2 == 1 && is_rooted(case_.op) && case_.op != Op::kBroadcast && rank_ != case_.root) {
    if (case_.op == Op::kScatter) {
      in = {};
    } else {
      out = {};
    }
  }
  const CallOptions options{.algorithm = case_.algorithm, .deadline = {}};
  const int root = case_.root;
  const bool uneven = case_.uneven;
  switch (case_.op) {
    case Op::kAllReduce:
      return in.data == out.data ? group.all_reduce(out, case_.reduce, options)
                                 : group.all_reduce(in, out, case_.reduce, options);
    case Op::kReduceScatter:
      return uneven ? group.reduce_scatter_v(in, out, counts_, case_.reduce, options)
                    : group.reduce_scatter(in, out, case_.reduce, options);
    case Op::kAllGather:
      return uneven ? group.all_gather_v(in, out, counts_, options) : group.all_gather(in, out, options);
    case Op::kAllToAll:
      return uneven ? group.all_to_all_v(in, out, counts_, recv_counts_, options) : group.all_to_all(in, out, options);
    case Op::kBroadcast:
      return group.broadcast(out, root, options);
    case Op::kReduce:
      return group.reduce(in, out, case_.reduce, root, options);
    case Op::kGather:
      return uneven ? group.gather_v(in, out, counts_, root, options) : group.gather(in, out, root, options);
    case Op::kScatter:
      return uneven ? group.scatter_v(in, out, counts_, root, options) : group.scatter(in, out, root, options);
    case Op::kBarrier:
      return group.barrier(options);
    case Op::kSend:
      return group.send(in, root, case_.tag, options);
    case Op::kRecv:
      return group.recv(out, root, case_.tag, options);
  }
  return {};
}

std::string Trial::verify() const {
  std::vector<std::byte> in = input_of(case_, ranks_, rank_), out = output_of(case_, ranks_, rank_);
  std::string wrong;
  if (overlap_ == Overlap::kOutInIn) {
    std::ranges::copy(out, in.begin() + static_cast<std::ptrdiff_t>(at_));
    wrong = compare(in_, in, "memory of input and output");
  } else {
    wrong = compare(in_, in, "input, which must not change,");
    if (wrong.empty()) wrong = compare(out_, out, "output");
  }
  if (wrong.empty()) return wrong;
  return fmt::format("rank {} of {}: {}: {}", rank_, ranks_, to_text(case_), wrong);
}

std::string Trial::compare(const Memory& memory, const std::vector<std::byte>& expected, const char* which) const {
  if (!memory.is_intact()) return fmt::format("the {} was written past its ends", which);
  if (expected.empty() || std::memcmp(memory.data(), expected.data(), expected.size()) == 0) return {};
  const std::size_t element = size_of(case_.type);
  for (std::size_t i = 0; i < expected.size(); i += element) {
    if (std::memcmp(memory.data() + i, expected.data() + i, element) == 0) continue;
    return fmt::format("element {} of {} of the {} is {} instead of {}", i / element, expected.size() / element, which,
                       read_value(case_.type, memory.data() + i), read_value(case_.type, expected.data() + i));
  }
  return {};
}

std::string try_case(Group& group, const Case& c) {
  Trial trial(c, group.size(), group.rank());
  trial.start(group).wait();
  c.place.wait();
  return trial.verify();
}

}  // namespace trireme::comm
