#include "trireme/formats/checkpoint_publish.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cstdio>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/new_file.h"

namespace trireme::formats {
namespace {

namespace fs = std::filesystem;

/// A writer that died earlier may have left files of another number of ranks.
void remove_strangers(const fs::path& folder, const CheckpointManifest& manifest) {
  std::set<std::string> known{std::string(kManifestFile)};
  for (const auto& part : manifest.parts) known.insert(part.name);
  for (const auto& [name, sum] : manifest.files) known.insert(name);
  std::vector<fs::path> strangers;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!known.contains(entry.path().filename().string())) strangers.push_back(entry.path());
  }
  for (const fs::path& path : strangers) fs::remove_all(path);
}

void rename_into_place(const fs::path& temporary, const fs::path& path) {
  std::error_code error;
  if (fs::exists(path) && renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    sync_folder(path.parent_path());
    fs::remove_all(temporary, error);
    return;
  }
  // Where the file system cannot exchange, the old one is put aside first.
  const fs::path old = path.string() + ".old.tmp";
  fs::remove_all(old, error);
  if (fs::exists(path)) fs::rename(path, old, error);
  fs::rename(temporary, path, error);
  if (error) throw IoError(fmt::format("{} cannot be renamed: {}", temporary.string(), error.message()));
  sync_folder(path.parent_path());
  fs::remove_all(old, error);
}

}  // namespace

fs::path unfinished(const fs::path& path) { return path.string() + ".tmp"; }

void publish(const fs::path& path, CheckpointManifest manifest, const std::map<std::string, std::string>& files) {
  const fs::path temporary = unfinished(path);
  try {
    for (const auto& [file, text] : files) {
      write_text_file(temporary / file, text);
      manifest.files[file] = checksum(text);
    }
    write_text_file(temporary / kManifestFile, manifest_text(manifest));
    remove_strangers(temporary, manifest);
    sync_folder(temporary);
    rename_into_place(temporary, path);
  } catch (const fs::filesystem_error& error) {
    throw IoError(fmt::format("{} cannot be made: {}", path.string(), error.what()));
  }
}

}  // namespace trireme::formats
