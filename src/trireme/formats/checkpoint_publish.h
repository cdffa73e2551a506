// formats/checkpoint_publish.h -- a folder of files that are on the disk becomes a checkpoint, in one step.
//
// Depends on: base, formats/checkpoint_manifest.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "trireme/formats/checkpoint_manifest.h"

namespace trireme::formats {

/// Under this name a checkpoint is written.
std::filesystem::path unfinished(const std::filesystem::path& path);

/// Puts `files` and the manifest beside the parts in unfinished(path), removes what belongs to neither, and renames:
/// one that is there already changes places with the new one and is removed. Afterwards all is on the disk. IoError.
void publish(const std::filesystem::path& path, CheckpointManifest manifest,
             const std::map<std::string, std::string>& files);

}  // namespace trireme::formats
