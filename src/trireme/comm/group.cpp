#include "trireme/comm/group.h"

#include <numeric>

#include "trireme/base/error.h"
#include "trireme/comm/gpu_memory.h"
#include "trireme/comm/rank.h"

namespace trireme::comm {
namespace {

using cost::Collective;

std::size_t total(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

[[noreturn]] void refuse(const Group& group, std::string_view op, const std::string& why,
                         const std::string& hint = {}) {
  throw CommError(fmt::format("{} on group '{}': {}", op, group.name(), why), hint);
}

}  // namespace

Work Group::all_reduce(Buffer data, Reduce reduce, CallOptions options) {
  return all_reduce(data, data, reduce, options);
}

Work Group::all_reduce(ConstBuffer in, Buffer out, Reduce reduce, CallOptions options) {
  return collective({.op = Collective::kAllReduce, .in = in, .out = out, .reduce = reduce}, options);
}

Work Group::reduce_scatter(ConstBuffer in, Buffer out, Reduce reduce, CallOptions options) {
  return collective({.op = Collective::kReduceScatter, .in = in, .out = out, .reduce = reduce}, options);
}

Work Group::reduce_scatter_v(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, Reduce reduce,
                             CallOptions options) {
  return collective(
      {.op = Collective::kReduceScatter, .in = in, .out = out, .reduce = reduce, .counts = counts, .uneven = true},
      options);
}

Work Group::all_gather(ConstBuffer in, Buffer out, CallOptions options) {
  return collective({.op = Collective::kAllGather, .in = in, .out = out}, options);
}

Work Group::all_gather_v(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, CallOptions options) {
  return collective({.op = Collective::kAllGather, .in = in, .out = out, .counts = counts, .uneven = true}, options);
}

Work Group::all_to_all(ConstBuffer in, Buffer out, CallOptions options) {
  return collective({.op = Collective::kAllToAll, .in = in, .out = out}, options);
}

Work Group::all_to_all_v(ConstBuffer in, Buffer out, std::span<const std::size_t> send_counts,
                         std::span<const std::size_t> recv_counts, CallOptions options) {
  return collective({.op = Collective::kAllToAll,
                     .in = in,
                     .out = out,
                     .counts = send_counts,
                     .recv_counts = recv_counts,
                     .uneven = true},
                    options);
}

Work Group::broadcast(Buffer data, int root, CallOptions options) {
  return collective({.op = Collective::kBroadcast, .in = data, .out = data, .root = root}, options);
}

Work Group::reduce(ConstBuffer in, Buffer out, Reduce reduce, int root, CallOptions options) {
  return collective({.op = Collective::kReduce, .in = in, .out = out, .reduce = reduce, .root = root}, options);
}

Work Group::gather(ConstBuffer in, Buffer out, int root, CallOptions options) {
  return collective({.op = Collective::kGather, .in = in, .out = out, .root = root}, options);
}

Work Group::gather_v(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, int root, CallOptions options) {
  return collective({.op = Collective::kGather, .in = in, .out = out, .root = root, .counts = counts, .uneven = true},
                    options);
}

Work Group::scatter(ConstBuffer in, Buffer out, int root, CallOptions options) {
  return collective({.op = Collective::kScatter, .in = in, .out = out, .root = root}, options);
}

Work Group::scatter_v(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, int root, CallOptions options) {
  return collective({.op = Collective::kScatter, .in = in, .out = out, .root = root, .counts = counts, .uneven = true},
                    options);
}

Work Group::barrier(CallOptions options) { return collective({.op = Collective::kBarrier}, options); }

Work Group::send(ConstBuffer data, int to, int tag, CallOptions options) {
  return point(Op::kSend, data.data, nullptr, data.count, data.type, data.device, to, tag, options);
}

Work Group::recv(Buffer data, int from, int tag, CallOptions options) {
  return point(Op::kRecv, nullptr, data.data, data.count, data.type, data.device, from, tag, options);
}

bool Group::moves(DeviceKind kind) const {
  return owner_.transport().moves(kind) || (kind == DeviceKind::kCuda && gpu() != nullptr);
}

void Group::check_device(Device device, std::string_view op) const {
  if (!moves(device.kind)) {
    refuse(*this, op, fmt::format("a buffer on a GPU, but transport '{}' moves host memory", owner_.transport().name()),
           has_processes() ? "call parallel::use_gpu_exchange() first" : "copy to the host first");
  }
  if (device.kind != DeviceKind::kCuda) return;
  if (const GpuTransport* gpu = this->gpu()) {
    if (device.index == gpu->gpu()) return;
    refuse(*this, op, fmt::format("a buffer on GPU {}, but this rank's is GPU {}", device.index, gpu->gpu()),
           "copy it there first");
  }
  if (gpu_memory() == nullptr) {
    refuse(*this, op, "a buffer on a GPU, but nobody has set kernels for it",
           "call parallel::use_gpu_exchange() first");
  }
}

void Group::check_request(const Request& request) const {
  const auto op = cost::name(request.op);
  const auto p = static_cast<std::size_t>(size());
  const std::size_t in = request.in.count, out = request.out.count;
  const bool is_root = request.root == rank();
  check_device(request.in.device, op);
  check_device(request.out.device, op);
  if (request.root < 0 || request.root >= size()) {
    refuse(*this, op, fmt::format("root {} is not in 0..{}", request.root, size() - 1));
  }
  if (request.uneven) {
    const bool all_to_all = request.op == Collective::kAllToAll;
    if (request.counts.size() != p || (all_to_all && request.recv_counts.size() != p)) {
      refuse(*this, op, fmt::format("{} block sizes for {} ranks", request.counts.size(), p),
             "give one size for each rank");
    }
  }

  // How long each buffer must be, given the other or the counts; none where it is not used on this rank.
  std::optional<std::size_t> want_in, want_out;
  const auto mine = static_cast<std::size_t>(rank());
  switch (request.op) {
    case Collective::kAllReduce:
      want_out = in;
      break;
    case Collective::kReduce:
      if (is_root) want_out = in;
      break;
    case Collective::kReduceScatter:
      if (request.uneven) want_out = request.counts[mine];
      want_in = request.uneven ? total(request.counts) : out * p;
      break;
    case Collective::kAllGather:
      if (request.uneven) want_in = request.counts[mine];
      want_out = request.uneven ? total(request.counts) : in * p;
      break;
    case Collective::kGather:
      if (request.uneven) want_in = request.counts[mine];
      if (is_root) want_out = request.uneven ? total(request.counts) : in * p;
      break;
    case Collective::kScatter:
      if (request.uneven) want_out = request.counts[mine];
      if (is_root) want_in = request.uneven ? total(request.counts) : out * p;
      break;
    case Collective::kAllToAll:
      want_in = request.uneven ? total(request.counts) : in / p * p;
      want_out = request.uneven ? total(request.recv_counts) : in;
      break;
    default:
      break;
  }
  if (want_in && *want_in != in) {
    refuse(*this, op, fmt::format("the input has {} elements, but {} are needed on {} ranks", in, *want_in, p));
  }
  if (want_out && *want_out != out) {
    refuse(*this, op, fmt::format("the output has {} elements, but {} are needed on {} ranks", out, *want_out, p));
  }
  const bool uses_both = request.in.data != nullptr && request.out.data != nullptr;
  if (uses_both && request.in.device.kind != request.out.device.kind) {
    refuse(*this, op, "one of input and output is on a GPU, the other on the host", "copy one of them first");
  }
  if (uses_both && request.in.type != request.out.type) {
    refuse(*this, op,
           fmt::format("input of type {} and output of type {}", comm::name(request.in.type),
                       comm::name(request.out.type)));
  }
  if (request.op == Collective::kAllToAll && uses_both && request.in.data == request.out.data && in != 0) {
    refuse(*this, op, "the output is the input", "give it a buffer of its own");
  }
  const bool uses_in = is_root || request.op != Collective::kScatter;
  const bool uses_out = is_root || (request.op != Collective::kReduce && request.op != Collective::kGather);
  if ((uses_in && in != 0 && request.in.data == nullptr) || (uses_out && out != 0 && request.out.data == nullptr)) {
    refuse(*this, op, "a buffer with elements has no memory (null pointer)");
  }
}

CallKey Group::key_of(const Request& request) const {
  const auto p = static_cast<std::size_t>(size());
  CallKey key{.op = op_of(request.op), .reduce = request.reduce, .root = request.root};
  key.type = request.in.data != nullptr || request.out.data == nullptr ? request.in.type : request.out.type;
  key.place =
      request.in.data != nullptr || request.out.data == nullptr ? request.in.device.kind : request.out.device.kind;
  switch (request.op) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
      key.count = request.in.count;
      break;
    case Collective::kReduceScatter:
      key.count = request.in.count;
      break;
    case Collective::kAllGather:
      key.count = request.out.count;
      break;
    case Collective::kGather:
      key.count = request.uneven ? total(request.counts) : request.in.count * p;
      break;
    case Collective::kScatter:
      key.type = request.out.type;
      key.place = request.out.device.kind;
      key.count = request.uneven ? total(request.counts) : request.out.count * p;
      break;
    case Collective::kAllToAll:
      key.count = request.uneven ? 0 : request.in.count;  // the ranks' totals differ
      break;
    case Collective::kBarrier:
      break;
  }
  if (request.uneven) key.counts_hash = request.op == Collective::kAllToAll ? 1 : hash_counts(request.counts);
  return key;
}

void Group::check_usable() const {
  if (!is_poisoned()) return;
  try {
    std::rethrow_exception(poison_);
  } catch (const Error& error) {
    throw PeerFailure(fmt::format("group '{}' cannot be used any more: {}", name_, error.message()), error.hint());
  } catch (const std::exception& error) {
    throw PeerFailure(fmt::format("group '{}' cannot be used any more: {}", name_, error.what()));
  }
}

Counters Group::counters(Op op) const {
  const auto& c = counters_[static_cast<std::size_t>(op)];
  return {
      .calls = c.calls, .bytes = c.bytes, .sent_bytes = c.sent_bytes, .time = std::chrono::nanoseconds(c.nanoseconds)};
}

void Group::reset_counters() {
  for (auto& c : counters_) c.calls = c.bytes = c.sent_bytes = c.nanoseconds = 0;
}

}  // namespace trireme::comm
