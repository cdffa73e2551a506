#include "trireme/checkpoint/store.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/checkpoint/state_source.h"
#include "trireme/formats/checkpoint_publish.h"
#include "trireme/formats/part_writer.h"
#include "trireme/layout/hash.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

formats::Dtype dtype_of(const nn::StateTensor& entry) {
  switch (entry.tensor.scalar_type()) {
    case at::kFloat:
      return formats::Dtype::kF32;
    case at::kDouble:
      return formats::Dtype::kF64;
    case at::kBFloat16:
      return formats::Dtype::kBF16;
    case at::kHalf:
      return formats::Dtype::kF16;
    case at::kLong:
      return formats::Dtype::kI64;
    case at::kInt:
      return formats::Dtype::kI32;
    default:
      throw InternalError(fmt::format("{} has a type that checkpoints do not store", entry.name));
  }
}

/// Whether it was written by another number of copies, and a rule says what becomes of it.
bool is_of_other_copies(const nn::StateTensor& entry, const std::vector<std::int64_t>& stored) {
  const layout::Shape& here = entry.placement.shape;
  if (entry.copies == nn::CopiesRule::kSame || stored == here) return false;
  if (entry.copies == nn::CopiesRule::kRestart) return true;
  return !stored.empty() && stored.size() == here.size() &&
         std::equal(stored.begin() + 1, stored.end(), here.begin() + 1);
}

void check_same(const StateSource& checkpoint, const std::vector<const nn::StateTensor*>& wanted,
                const std::vector<const nn::StateValue*>& values) {
  std::vector<std::string> problems;
  for (const nn::StateTensor* entry : wanted) {
    const auto stored = checkpoint.manifest().tensors.find(entry->name);
    if (stored == checkpoint.manifest().tensors.end()) {
      problems.push_back(fmt::format("{} is missing", entry->name));
      continue;
    }
    const formats::TensorSpec there{entry->name, stored->second.dtype, stored->second.shape},
        here{entry->name, dtype_of(*entry), entry->placement.shape};
    if (there != here && (there.dtype != here.dtype || !is_of_other_copies(*entry, stored->second.shape))) {
      problems.push_back(
          fmt::format("{} is {} there and {} here", entry->name, formats::to_text(there), formats::to_text(here)));
    }
  }
  for (const nn::StateValue* entry : values) {
    if (!checkpoint.manifest().values->contains(entry->name)) {
      problems.push_back(fmt::format("{} is missing", entry->name));
    }
  }
  if (problems.empty()) return;
  const std::size_t shown = std::min<std::size_t>(problems.size(), 5);
  throw ConfigError(
      fmt::format("{} is of another run: {}{}", checkpoint.name(),
                  fmt::join(problems.begin(), problems.begin() + static_cast<std::ptrdiff_t>(shown), "; "),
                  shown < problems.size() ? fmt::format("; and {} more", problems.size() - shown) : std::string()),
      "model, optimizer and precision must be those that it was written with");
}

/// The stretches of the parts that make up what this rank holds of a tensor.
void add_wanted(const formats::StoredTensor& stored, const layout::Placement& placement, std::byte* to,
                std::vector<formats::Fetch>& wanted) {
  for (const layout::ContiguousRun& run : layout::runs(placement)) {
    formats::add_fetches(stored, run.global, run.global + run.count,
                         to + static_cast<std::size_t>(run.local) * stored.element_bytes(), wanted);
  }
}

class FolderSource final : public StateSource {
 public:
  explicit FolderSource(const formats::CheckpointFolder& folder) : folder_(folder) {}
  std::string name() const override { return folder_.path().string(); }
  const formats::CheckpointManifest& manifest() const override { return folder_.manifest(); }
  void fetch(std::vector<formats::Fetch> wanted, int threads) const override {
    folder_.fetch(std::move(wanted), threads);
  }

 private:
  const formats::CheckpointFolder& folder_;
};

/// What the entry's rule makes of copies that others wrote.
void fetch_other_copies(const StateSource& checkpoint, const nn::StateTensor& entry, int threads) {
  const formats::StoredTensor& stored = checkpoint.manifest().tensors.at(entry.name);
  const layout::Index there = stored.shape.front(), here = entry.placement.shape.front();
  if (entry.placement.pieces.empty()) return;
  const layout::Index mine = entry.placement.pieces.front().box.begin.front();
  const auto fetch_copy = [&](layout::Index copy) {
    layout::Placement placement = entry.placement;
    placement.shape.front() = there;
    for (layout::Piece& piece : placement.pieces) piece.box.begin.front() = copy, piece.box.end.front() = copy + 1;
    at::Tensor host = at::zeros(entry.tensor.sizes(), entry.tensor.options().device(at::kCPU));
    std::vector<formats::Fetch> wanted;
    add_wanted(stored, placement, static_cast<std::byte*>(host.mutable_data_ptr()), wanted);
    checkpoint.fetch(std::move(wanted), threads);
    return host;
  };
  at::Tensor target = entry.tensor;
  switch (entry.copies) {
    case nn::CopiesRule::kSum:
      target.zero_();
      for (layout::Index copy = 0; copy < there; ++copy) target.add_(fetch_copy(copy));
      target.div_(static_cast<double>(here));
      break;
    case nn::CopiesRule::kOwnOrZero:
      mine < there ? target.copy_(fetch_copy(mine)) : target.zero_();
      break;
    case nn::CopiesRule::kOwnOrFirst:
      target.copy_(fetch_copy(mine < there ? mine : 0));
      break;
    case nn::CopiesRule::kRestart:
    case nn::CopiesRule::kSame:
      break;
  }
}

}  // namespace

std::vector<HeldTensor> holdings_of(const nn::State& state) {
  std::vector<HeldTensor> holdings;
  for (const nn::StateTensor& entry : state.tensors()) holdings.push_back({dtype_of(entry), entry.placement});
  return holdings;
}

fs::path save(const nn::State& state, const SaveRequest& request) {
  const fs::path path = request.folder / (request.name.empty() ? formats::checkpoint_name(request.step) : request.name);
  const std::vector<std::vector<HeldTensor>> alone{holdings_of(state)};
  const SavePlan plan = plan_save(alone);
  const PartPlan part = part_of(plan, 0);
  formats::CheckpointManifest manifest{.step = request.step, .tokens = request.tokens, .metric = request.metric};
  manifest.values = nlohmann::ordered_json::object();
  for (const nn::StateValue& value : state.values()) (*manifest.values)[value.name] = value.get();
  describe(plan, manifest);

  const std::string prefix = part.prefix();
  std::vector<formats::PieceOfMemory> pieces{{reinterpret_cast<const std::byte*>(prefix.data()), prefix.size()}};
  std::vector<at::Tensor> hosts;
  std::vector<nn::HashShare> hashes;
  for (const std::size_t at : part.order) {
    const SaveShare& share = plan.ranks[0][at];
    const at::Tensor& host = hosts.emplace_back(state.at(plan.tensors[share.tensor].name).tensor.cpu());
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes());
    const auto element = static_cast<std::size_t>(host.element_size());
    for (const layout::ContiguousRun& run : share.runs) {
      formats::append_piece(pieces, {bytes.data() + static_cast<std::size_t>(run.local) * element,
                                     static_cast<std::uint64_t>(run.count) * element});
    }
    hashes.push_back({plan.tensors[share.tensor].name, layout::tensor_hash(share.runs, bytes, element)});
  }
  for (const formats::TensorSpec& tensor : plan.tensors) {  // those without elements count by their names
    if (manifest.tensors.at(tensor.name).slices.empty()) hashes.push_back({tensor.name, 0});
  }
  const auto values = nn::value_hashes(state);
  hashes.insert(hashes.end(), values.begin(), values.end());
  manifest.hash = nn::total_hash(hashes);

  std::error_code error;
  fs::remove_all(formats::unfinished(path), error);
  fs::create_directories(formats::unfinished(path), error);
  if (error) throw IoError(fmt::format("{} cannot be made: {}", path.string(), error.message()));
  try {
    if (!part.order.empty()) {
      manifest.parts[0].checks = formats::write_part(formats::unfinished(path) / manifest.parts[0].name, pieces);
    }
    formats::publish(path, std::move(manifest), request.files);
  } catch (const IoError&) {
    fs::remove_all(formats::unfinished(path), error);
    throw;
  }
  return path;
}

void load_from(const StateSource& checkpoint, nn::State& state, LoadScope scope, int threads) {
  std::vector<const nn::StateTensor*> tensors;
  for (const nn::StateTensor& entry : state.tensors()) {
    const bool weights = entry.name.starts_with("param/") || entry.name.starts_with("router_bias/");
    if (scope == LoadScope::kEverything || weights) tensors.push_back(&entry);
  }
  std::vector<const nn::StateValue*> values;
  if (scope == LoadScope::kEverything) {
    for (const nn::StateValue& entry : state.values()) {
      // What only watches the run may begin anew: a run may switch it on when it goes on.
      const bool watches = entry.name.starts_with("health/");
      if (!watches || checkpoint.manifest().values->contains(entry.name)) values.push_back(&entry);
    }
  }
  check_same(checkpoint, tensors, values);
  std::vector<formats::Fetch> wanted;
  for (const nn::StateTensor* entry : tensors) {
    const formats::StoredTensor& stored = checkpoint.manifest().tensors.at(entry->name);
    if (is_of_other_copies(*entry, stored.shape)) {
      fetch_other_copies(checkpoint, *entry, threads);
      continue;
    }
    if (entry->tensor.is_cpu()) {
      add_wanted(stored, entry->placement, static_cast<std::byte*>(entry->tensor.mutable_data_ptr()), wanted);
      continue;
    }
    // One tensor at a time through the host's memory.
    at::Tensor host = entry->tensor.cpu();
    std::vector<formats::Fetch> one;
    add_wanted(stored, entry->placement, static_cast<std::byte*>(host.mutable_data_ptr()), one);
    checkpoint.fetch(std::move(one), threads);
    entry->tensor.copy_(host);
  }
  checkpoint.fetch(std::move(wanted), threads);
  for (const nn::StateValue* entry : values) entry->set(checkpoint.manifest().values->at(entry->name));
}

void load(const formats::CheckpointFolder& checkpoint, nn::State& state, LoadScope scope, int threads) {
  load_from(FolderSource(checkpoint), state, scope, threads);
}

}  // namespace trireme::checkpoint
