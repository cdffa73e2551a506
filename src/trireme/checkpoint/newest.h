// checkpoint/newest.h -- which checkpoint all ranks go on from: the newest that is whole to the last byte.
//
// Depends on: comm, formats.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/formats/checkpoint_folder.h"

namespace trireme::checkpoint {

/// Its step, the same on every rank; -1: there is none. Each rank reads its share of the blocks, so that a large
/// checkpoint is checked as fast as the ranks can read together. Those that are not whole are told on rank 0.
std::int64_t newest_whole(const std::filesystem::path& folder, comm::Group& group,
                          std::vector<formats::DamagedCheckpoint>& damaged, std::int64_t at_most = -1);

}  // namespace trireme::checkpoint
