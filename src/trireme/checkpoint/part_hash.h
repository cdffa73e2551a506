// checkpoint/part_hash.h -- the hash of what a rank writes, taken piece by piece as its file is written.
//
// The hash is a sum over elements (layout/hash.h), so any range of the file may be hashed by any thread at any time:
// best by the one that has just had these bytes in its cache for their checksum.
// Depends on: layout, save_plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/checkpoint/save_plan.h"

namespace trireme::checkpoint {

class PartHash {
 public:
  /// Where a share's elements are in memory.
  enum class Lie : std::uint8_t {
    kInTensor,  ///< where they are in the rank's tensor: ContiguousRun::local
    kInFile,    ///< one behind the other, as in the file
  };

  /// `part` is the file of these `shares`. `data[i]`: the memory of the share that lies i-th in the file. All borrowed.
  PartHash(std::span<const SaveShare> shares, const PartPlan& part, std::vector<std::span<const std::byte>> data,
           Lie lie);

  /// Of the elements whose first byte is in [begin, end) of the file. Each byte must be asked for once.
  void add(std::uint64_t begin, std::uint64_t end);
  /// By share, when all of it has been added.
  const std::vector<std::uint64_t>& hashes() const { return hashes_; }

 private:
  struct Place {
    std::uint64_t begin = 0, end = 0;  ///< in the file
    std::size_t share = 0, element_bytes = 1;
    std::vector<layout::Index> before;  ///< of each run: elements in front of it
  };

  std::span<const SaveShare> shares_;
  std::vector<std::span<const std::byte>> data_;
  Lie lie_;
  std::vector<Place> places_;  // in the order of the file
  std::vector<std::uint64_t> hashes_;
};

}  // namespace trireme::checkpoint
