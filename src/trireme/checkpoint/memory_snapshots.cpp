#include "trireme/checkpoint/memory_snapshots.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "trireme/base/cores.h"
#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/checkpoint/state_source.h"
#include "trireme/checkpoint/texts.h"

namespace trireme::checkpoint {
namespace {

constexpr std::size_t kKeptSnapshots = 2;

std::string held_text(const std::vector<HeldSnapshot>& held) {
  nlohmann::json list = nlohmann::json::array();
  for (const HeldSnapshot& one : held) list.push_back({one.id.epoch, one.id.step, one.parts, one.of});
  return list.dump();
}

std::vector<HeldSnapshot> parse_held(const std::string& text) {
  std::vector<HeldSnapshot> held;
  for (const auto& one : nlohmann::json::parse(text)) {
    held.push_back({.id = {.epoch = one.at(0), .step = one.at(1)}, .parts = one.at(2), .of = one.at(3)});
  }
  return held;
}

std::vector<std::vector<HeldSnapshot>> all_holdings(const MemorySnapshots& snapshots, comm::Group& world) {
  std::vector<std::vector<HeldSnapshot>> all;
  for (const std::string& text : all_texts(held_text(snapshots.holdings()), world)) all.push_back(parse_held(text));
  return all;
}

comm::Buffer snapshot_bytes(std::vector<std::byte>& bytes) { return {bytes.data(), bytes.size(), comm::DType::kU8}; }

}  // namespace

std::optional<SnapshotId> choose_snapshot(const std::vector<std::vector<HeldSnapshot>>& holdings) {
  std::map<SnapshotId, std::set<std::size_t>> found;
  std::map<SnapshotId, std::size_t> of;
  for (const auto& rank : holdings) {
    for (const HeldSnapshot& held : rank) {
      found[held.id].insert(held.parts.begin(), held.parts.end());
      of[held.id] = held.of;
    }
  }
  std::optional<SnapshotId> best;
  for (const auto& [id, parts] : found) {
    if (parts.size() != of.at(id)) continue;
    if (!best || id.step > best->step || (id.step == best->step && id.epoch > best->epoch)) best = id;
  }
  return best;
}

std::vector<int> holders_of(const SnapshotId& id, const std::vector<std::vector<HeldSnapshot>>& holdings) {
  std::vector<int> holders;
  for (std::size_t rank = holdings.size(); rank-- > 0;) {  // the first that has it counts in the end
    for (const HeldSnapshot& held : holdings[rank]) {
      if (held.id != id) continue;
      holders.resize(std::max(holders.size(), held.of), -1);
      for (const std::size_t part : held.parts) holders[part] = static_cast<int>(rank);
    }
  }
  return holders;
}

std::vector<HeldSnapshot> MemorySnapshots::holdings() const {
  std::vector<HeldSnapshot> held;
  for (const Snapshot& snapshot : kept_) {
    HeldSnapshot one{.id = snapshot.id, .parts = {}, .of = snapshot.of};
    for (const auto& [part, image] : snapshot.parts) one.parts.push_back(part);
    held.push_back(std::move(one));
  }
  return held;
}

const MemorySnapshots::Snapshot* MemorySnapshots::find(const SnapshotId& id) const {
  const auto found = std::ranges::find(kept_, id, &Snapshot::id);
  return found == kept_.end() ? nullptr : &*found;
}

void MemorySnapshots::keep(Snapshot snapshot) {
  // A world that took this step again, after an older state: what was there under this name is no more.
  std::erase_if(kept_, [&](const Snapshot& one) { return one.id == snapshot.id; });
  kept_.push_back(std::move(snapshot));
  spare_.clear();
  while (kept_.size() > kKeptSnapshots) {
    for (auto& [part, image] : kept_.front().parts) spare_.push_back(std::move(image));
    kept_.pop_front();
  }
}

std::vector<std::byte> MemorySnapshots::recycle(std::size_t bytes) {
  const auto found = std::ranges::find(spare_, bytes, [](const auto& image) { return image.size(); });
  if (found == spare_.end()) return {};
  std::vector<std::byte> image = std::move(*found);
  spare_.erase(found);
  return image;
}

std::string MemorySnapshots::Snapshot::manifest_text() const {
  formats::CheckpointManifest manifest = *layout;
  manifest.step = id.step;
  manifest.values = nlohmann::ordered_json::parse(values);
  return formats::manifest_text(manifest);
}

std::size_t MemorySnapshots::bytes() const {
  std::size_t sum = 0;
  for (const Snapshot& snapshot : kept_) {
    for (const auto& [part, image] : snapshot.parts) sum += image.size();
  }
  return sum;
}

SnapshotTaker::SnapshotTaker(const nn::State& state, comm::Group& world, MemorySnapshots& snapshots, std::int64_t epoch)
    : state_(state), world_(world), snapshots_(snapshots), epoch_(epoch) {
  plan();
}

void SnapshotTaker::plan() {
  placement_changes_ = state_.placement_changes();
  std::vector<std::vector<HeldTensor>> all;
  for (const std::string& text : all_texts(holdings_text(holdings_of(state_)), world_))
    all.push_back(parse_holdings(text));
  plan_ = plan_save(all);
  const auto me = static_cast<std::size_t>(world_.rank());
  const std::size_t before = (me + plan_.ranks.size() - 1) % plan_.ranks.size();
  part_ = part_of(plan_, me);
  prefix_ = part_.prefix();
  const auto layout = std::make_shared<formats::CheckpointManifest>();
  layout_ = layout;
  describe(plan_, *layout);
  // A manifest says a sum of every block; of memory that the run itself computes with, nobody asks for them.
  for (formats::StoredPart& part : layout->parts) {
    for (std::uint64_t begin = 0; begin < part.bytes; begin += formats::kCheckedBlock)
      part.checks.push_back({.begin = begin, .end = std::min(begin + formats::kCheckedBlock, part.bytes), .sum = 0});
  }
  // Parts are those of ranks that have something to write, in their order.
  const auto part_at = [&](std::size_t rank) -> Part {
    if (plan_.ranks[rank].empty()) return {};
    const auto number = std::count_if(plan_.ranks.begin(), plan_.ranks.begin() + static_cast<std::ptrdiff_t>(rank),
                                      [](const auto& shares) { return !shares.empty(); });
    return {.number = static_cast<std::size_t>(number), .bytes = layout->parts[static_cast<std::size_t>(number)].bytes};
  };
  mine_ = part_at(me);
  theirs_ = before != me ? part_at(before) : Part{};
  for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
    if (rank == me) continue;
    for (SaveShare& share : plan_.ranks[rank]) share.runs = {};
  }
}

void SnapshotTaker::copy_mine(std::byte* to) const {
  std::memcpy(to, prefix_.data(), prefix_.size());
  to += prefix_.size();
  const auto& shares = plan_.ranks[static_cast<std::size_t>(world_.rank())];
  for (const std::size_t at : part_.order) {
    const SaveShare& share = shares[at];
    const at::Tensor host = state_.at(plan_.tensors[share.tensor].name).tensor.cpu();
    const auto* data = static_cast<const std::byte*>(host.const_data_ptr());
    const auto element = static_cast<std::size_t>(host.element_size());
    for (const layout::ContiguousRun& run : share.runs) {
      const std::size_t bytes = static_cast<std::size_t>(run.count) * element;
      std::memcpy(to, data + static_cast<std::size_t>(run.local) * element, bytes);
      to += bytes;
    }
  }
}

void SnapshotTaker::take(std::int64_t step) {
  const auto began = std::chrono::steady_clock::now();
  const double cpu_before = process_cpu_seconds();
  if (state_.placement_changes() != placement_changes_) plan();  // the same on all ranks
  MemorySnapshots::Snapshot snapshot{
      .id = {epoch_, step}, .layout = layout_, .values = {}, .of = layout_->parts.size(), .parts = {}};
  nlohmann::ordered_json values = nlohmann::ordered_json::object();
  for (const nn::StateValue& value : state_.values()) values[value.name] = value.get();
  snapshot.values = values.dump();
  const auto image_of = [&](std::uint64_t bytes) {
    std::vector<std::byte> image = snapshots_.recycle(bytes);
    image.resize(bytes);
    return image;
  };
  std::vector<std::byte> mine, theirs;
  comm::Work receiving, sending;
  if (theirs_.number) {
    theirs = image_of(theirs_.bytes);
    receiving = world_.recv(snapshot_bytes(theirs), (world_.rank() + world_.size() - 1) % world_.size());
  }
  if (mine_.number) {
    mine = image_of(mine_.bytes);
    copy_mine(mine.data());
    if (world_.size() > 1)
      sending = world_.send({mine.data(), mine.size(), comm::DType::kU8}, (world_.rank() + 1) % world_.size());
  }
  if (theirs_.number) receiving.wait();
  if (mine_.number && world_.size() > 1) sending.wait();
  if (mine_.number) snapshot.parts[*mine_.number] = std::move(mine);
  if (theirs_.number) snapshot.parts[*theirs_.number] = std::move(theirs);
  snapshots_.keep(std::move(snapshot));
  ++cost_.taken;
  cost_.bytes += mine_.bytes;
  cost_.seconds += seconds_since(began);
  cost_.cpu_seconds += process_cpu_seconds() - cpu_before;
}

std::optional<SnapshotId> newest_snapshot(const MemorySnapshots& snapshots, comm::Group& world) {
  return choose_snapshot(all_holdings(snapshots, world));
}

namespace {

/// Parts in the memory of the world's ranks. Ranks ask each other in rounds, which all take part in: a rank that
/// fetches begins one, and finish() goes along with those of the others until everybody has finished.
class SnapshotSource final : public StateSource {
 public:
  SnapshotSource(const MemorySnapshots& snapshots, const SnapshotId& id, comm::Group& world)
      : snapshot_(snapshots.find(id)), id_(id), world_(world) {
    const auto holdings = all_holdings(snapshots, world);
    holders_ = holders_of(id, holdings);
    TRIREME_CHECK(!holders_.empty() && std::ranges::count(holders_, -1) == 0, "step {} is not held whole", id.step);
    const auto texts = all_texts(holders_.front() == world.rank() ? snapshot_->manifest_text() : std::string(), world);
    manifest_ = formats::parse_manifest(texts[static_cast<std::size_t>(holders_.front())], name());
  }
  std::string name() const override { return fmt::format("the snapshot of step {} of epoch {}", id_.step, id_.epoch); }
  const formats::CheckpointManifest& manifest() const override { return manifest_; }
  void fetch(std::vector<formats::Fetch> wanted, int) const override { round(std::move(wanted), true); }
  /// On all ranks, when they need no more.
  void finish() {
    while (round({}, false)) {
    }
  }

 private:
  using Counts = std::vector<std::size_t>;
  struct Ask {
    std::uint64_t part, at, bytes;
  };

  template <typename Element>
  std::vector<Element> exchange(const std::vector<Element>& out, const Counts& send, const Counts& receive) const {
    std::vector<Element> in(std::accumulate(receive.begin(), receive.end(), std::size_t{0}));
    const auto in_bytes = [](Counts counts) {
      for (std::size_t& count : counts) count *= sizeof(Element);
      return counts;
    };
    world_
        .all_to_all_v({out.data(), out.size() * sizeof(Element), comm::DType::kU8},
                      {in.data(), in.size() * sizeof(Element), comm::DType::kU8}, in_bytes(send), in_bytes(receive))
        .wait();
    return in;
  }

  /// Whether anybody has not finished yet.
  bool round(std::vector<formats::Fetch> wanted, bool more) const {
    std::int64_t busy = more ? 1 : 0;
    world_.all_reduce(comm::Buffer{&busy, 1, comm::DType::kI64}, comm::Reduce::kMax).wait();
    if (busy == 0) return false;
    const auto ranks = static_cast<std::size_t>(world_.size());
    std::ranges::stable_sort(wanted, {}, [&](const formats::Fetch& fetch) { return holders_[fetch.part]; });
    std::vector<Ask> asks;
    Counts ask_counts(ranks), byte_counts(ranks);
    for (const formats::Fetch& fetch : wanted) {
      const auto holder = static_cast<std::size_t>(holders_[fetch.part]);
      asks.push_back({fetch.part, fetch.at, fetch.bytes});
      ++ask_counts[holder];
      byte_counts[holder] += fetch.bytes;
    }
    std::vector<std::uint64_t> sizes(ask_counts.begin(), ask_counts.end());
    const std::vector<std::uint64_t> their_sizes = exchange(sizes, Counts(ranks, 1), Counts(ranks, 1));
    const Counts their_counts(their_sizes.begin(), their_sizes.end());
    const std::vector<Ask> their_asks = exchange(asks, ask_counts, their_counts);
    std::vector<std::byte> reply;
    Counts reply_counts(ranks);
    for (std::size_t rank = 0, at = 0; rank < ranks; ++rank) {
      for (std::size_t i = 0; i < their_counts[rank]; ++i, ++at) {
        const Ask& ask = their_asks[at];
        const std::vector<std::byte>& image = snapshot_->parts.at(ask.part);
        TRIREME_CHECK(ask.at + ask.bytes <= image.size(), "bytes {} to {} of a part of {}", ask.at, ask.at + ask.bytes,
                      image.size());
        const auto from = image.begin() + static_cast<std::ptrdiff_t>(ask.at);
        reply.insert(reply.end(), from, from + static_cast<std::ptrdiff_t>(ask.bytes));
        reply_counts[rank] += ask.bytes;
      }
    }
    const std::vector<std::byte> answer = exchange(reply, reply_counts, byte_counts);
    const std::byte* from = answer.data();
    for (const formats::Fetch& fetch : wanted) {
      std::memcpy(fetch.to, from, fetch.bytes);
      from += fetch.bytes;
    }
    return true;
  }

  const MemorySnapshots::Snapshot* snapshot_;  // null on a rank that has nothing of it
  const SnapshotId id_;
  comm::Group& world_;
  std::vector<int> holders_;  // [part]
  formats::CheckpointManifest manifest_;
};

}  // namespace

void load_snapshot(const MemorySnapshots& snapshots, const SnapshotId& id, nn::State& state, comm::Group& world) {
  SnapshotSource source(snapshots, id, world);
  load_from(source, state);
  source.finish();
}

}  // namespace trireme::checkpoint
