// checkpoint/save_plan.h -- who writes what: every element of the state once, each rank about as many bytes.
//
// A pure function of what the ranks hold. Where copies exist, any of their ranks may write, so the plan gives whole
// tensors to the rank that has least and cuts a tensor only where that is not even enough.
// Depends on: base, formats, layout. No tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/formats/checkpoint_manifest.h"
#include "trireme/formats/safetensors.h"
#include "trireme/layout/placement.h"

namespace trireme::checkpoint {

/// A tensor, or a part of one, that a rank holds.
struct HeldTensor {
  formats::Dtype dtype = formats::Dtype::kF32;
  layout::Placement placement;  ///< with the tensor's name and global shape
};

/// As one line, for the other ranks, and back. Replica axes are left out: who holds what says it.
std::string holdings_text(std::span<const HeldTensor> holdings);
std::vector<HeldTensor> parse_holdings(const std::string& text);

/// The elements of a tensor that a rank writes, by ascending global place.
struct SaveShare {
  std::size_t tensor = 0;  ///< in SavePlan::tensors
  std::vector<layout::ContiguousRun> runs;
  bool operator==(const SaveShare&) const = default;
};

struct SavePlan {
  std::vector<formats::TensorSpec> tensors;   ///< by name, global shapes
  std::vector<std::vector<SaveShare>> ranks;  ///< by tensor
  std::uint64_t bytes_of(std::size_t rank) const;
};

/// holdings[rank]. A share of a tensor smaller than `grain_bytes` is not made by cutting: a slice more costs more than
/// it evens out. InternalError naming the tensor when ranks disagree on it or nobody holds an element.
SavePlan plan_save(std::span<const std::vector<HeldTensor>> holdings, std::uint64_t grain_bytes = 1 << 20);

/// The file of one rank: its header, and what follows it, in order.
struct PartPlan {
  formats::SafetensorsHeader header;
  std::vector<std::size_t> order;  ///< shares of the rank as they lie in the file
  std::string prefix() const;      ///< length and header: the first bytes of the file
};
PartPlan part_of(const SavePlan& plan, std::size_t rank);

/// Where everything is, when every rank with something to write has written its part; parts without checksums.
void describe(const SavePlan& plan, formats::CheckpointManifest& manifest);

}  // namespace trireme::checkpoint
