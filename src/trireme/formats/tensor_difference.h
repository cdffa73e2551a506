// formats/tensor_difference.h -- how far two stored tensors of one name are apart.
//
// Depends on: base, checkpoint_folder.
#pragma once

#include <string>
#include <vector>

#include "trireme/formats/checkpoint_folder.h"

namespace trireme::formats {

struct StoredDifference {
  std::string name;
  /// Largest |a - b|, over the largest |a| or |b|; 0: equal. Infinite: a NaN on one side, or shapes or types differ.
  double relative = 0;
};

/// Of every tensor that both checkpoints have, the one that differs most first.
std::vector<StoredDifference> tensor_differences(const CheckpointFolder& left, const CheckpointFolder& right);

}  // namespace trireme::formats
