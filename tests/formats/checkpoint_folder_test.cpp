#include "trireme/formats/checkpoint_folder.h"

#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme::formats {
namespace {

CheckpointManifest example() {
  CheckpointManifest manifest{.step = 20, .tokens = 40960, .hash = 0xabc};
  manifest.values = {{"train/position", {{"step", 20}, {"tokens", 40960}}}, {"loss_scale", {{"scale", 0.1}}}};
  manifest.header = 7;
  manifest.tensors = {{"param/wte", 1}, {"optim/m/wte", ~std::uint64_t{0}}};
  manifest.files = {{"recipe.toml", 3}};
  return manifest;
}

TEST(Manifest, ReadsBackWhatWasWritten) {
  const CheckpointManifest in = example(), out = parse_manifest(manifest_text(in), "manifest.json");
  EXPECT_EQ(out.step, in.step);
  EXPECT_EQ(out.tokens, in.tokens);
  EXPECT_EQ(out.hash, in.hash);
  EXPECT_EQ(out.values, in.values);
  EXPECT_EQ(out.header, in.header);
  EXPECT_EQ(out.tensors, in.tensors);
  EXPECT_EQ(out.files, in.files);
}

/// A change of any byte is noticed, or makes the same manifest (white space).
TEST(Manifest, NoticesEveryChangedByte) {
  const std::string text = manifest_text(example());
  const auto whole = nlohmann::ordered_json::parse(text);
  int refused = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (const int flip : {1, 2, 0x20, 0x80}) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      try {
        parse_manifest(damaged, "manifest.json");
        EXPECT_EQ(nlohmann::ordered_json::parse(damaged), whole) << at;
      } catch (const IoError&) {
        ++refused;
      }
    }
    if (at + 1 < text.size()) {  // all but the last line break
      EXPECT_THROW(parse_manifest(std::string_view(text).substr(0, at), "m"), IoError);
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(Manifest, SaysWhatItIsNot) {
  try {
    parse_manifest(R"({"format": "something"})", "here/manifest.json");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_NE(error.message().find("here/manifest.json"), std::string::npos);
    EXPECT_NE(error.message().find("no manifest"), std::string::npos);
  }
}

TEST(CheckpointNames, AreStepsAndBack) {
  EXPECT_EQ(checkpoint_name(20), "step-00000020");
  EXPECT_EQ(checkpoint_step("step-00000020"), 20);
  EXPECT_EQ(checkpoint_step("step-123456789"), 123456789);
  for (const char* other : {"step-20", "step-00000020.tmp", "step--0000020", "stop-00000020", "step-0000002x", ""}) {
    EXPECT_EQ(checkpoint_step(other), std::nullopt) << other;
  }
}

}  // namespace
}  // namespace trireme::formats
