// tests/comm/reference.h -- what every call must give, worked out plainly by one thread.
//
// A Case describes one call so completely that any rank can tell every rank's input and what must come out. The values
// are small whole numbers for which every order of combining is exact in every type: results are compared by their
// bits. Works over any transport; needs no test framework.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/call.h"
#include "trireme/comm/group.h"

namespace trireme::comm {

/// Where buffers are, and how to wait until what was started there is over; the host needs none.
struct Place {
  Device device = {};
  void (*synchronise)() = nullptr;
  bool on_gpu() const { return device.kind == DeviceKind::kCuda; }
  void wait() const {
    if (synchronise != nullptr) synchronise();
  }
};

struct Case {
  Op op = Op::kBarrier;
  Algorithm algorithm = Algorithm::kAuto;
  DType type = DType::kF32;
  Reduce reduce = Reduce::kSum;
  std::size_t count = 0;  // elements of the buffer, or of every rank's block; of an uneven block: on average
  bool uneven = false;
  bool in_place = false;
  int root = 0;  // send, recv: the other rank
  int tag = 0;
  std::uint64_t seed = 0;
  Place place = {};
};
/// "all_gather_v of 7 x bf16 a block (bruck, in place, seed 3)".
std::string to_text(const Case& c);
/// One block a rank in one of the buffers.
bool is_blocked(Op op);
bool is_rooted(Op op);

/// Elements that go from one rank to another; `from` only matters for all_to_all.
std::size_t block_of(const Case& c, int from, int to);
double input_value(const Case& c, int rank, std::size_t i);
std::vector<std::byte> input_of(const Case& c, int ranks, int rank);
/// Empty where the rank has no output.
std::vector<std::byte> output_of(const Case& c, int ranks, int rank);

/// Memory with guard bytes before and after, and no better aligned than its elements must be.
class Memory {
 public:
  Memory(DType type, std::size_t bytes, std::uint64_t seed);
  Memory(DType type, const std::vector<std::byte>& contents, std::uint64_t seed);
  std::byte* data() { return bytes_.data() + begin_; }
  const std::byte* data() const { return bytes_.data() + begin_; }
  std::size_t size() const { return size_; }
  bool is_intact() const;

 private:
  std::size_t size_, begin_;
  std::vector<std::byte> bytes_;
};

/// One rank's part of a case: the memory, the call, and the verdict.
class Trial {
 public:
  Trial(const Case& c, int ranks, int rank);
  /// The work borrows the trial's memory: the trial must not go before it.
  Work start(Group& group);
  /// What is wrong with what came out; empty when nothing is. To be asked once the work is done.
  std::string verify() const;

 private:
  std::string compare(const Memory& memory, const std::vector<std::byte>& expected, const char* which) const;

  Case case_;
  int ranks_, rank_;
  std::vector<std::size_t> counts_, recv_counts_;
  Memory in_, out_;
  // In place, input and output lie in one memory, the shorter one somewhere inside.
  enum class Overlap : std::uint8_t { kApart, kOutInIn, kInInOut } overlap_ = Overlap::kApart;
  std::size_t at_ = 0;  // where, in bytes
};

/// Starts the call, waits for it, and says what is wrong with the result.
std::string try_case(Group& group, const Case& c);

}  // namespace trireme::comm
