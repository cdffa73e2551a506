#include "trireme/formats/checkpoint_folder.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"

namespace trireme::formats {
namespace {

CheckpointManifest example() {
  CheckpointManifest manifest{.step = 20, .tokens = 40960, .hash = 0xabc};
  manifest.values =
      nlohmann::ordered_json{{"train/position", {{"step", 20}, {"tokens", 40960}}}, {"loss_scale", {{"scale", 0.1}}}};
  manifest.files = {{"recipe.toml", 3}};
  manifest.metric = 2.25;
  manifest.parts = {
      {"state-00000-of-00002.safetensors", 600, {{0, 600, 7}}},
      {"state-00001-of-00002.safetensors", 2 << 20, {{0, 1 << 20, 8}, {1 << 20, 2 << 20, ~std::uint64_t{0}}}}};
  manifest.tensors["param/wte"] = {Dtype::kF32, {4, 6}, {{0, 100, {{0, 3, 6, 4}}}, {1, 200, {{3, 3, 6, 4}}}}};
  manifest.tensors["optim/m/wte"] = {Dtype::kBF16, {5}, {{1, 300, {{0, 2}}}, {0, 500, {{2, 3}}}}};
  manifest.tensors["empty"] = {Dtype::kF64, {0, 3}, {}};
  return manifest;
}

TEST(Manifest, ReadsBackWhatWasWritten) {
  const CheckpointManifest in = example(), out = parse_manifest(manifest_text(in), "manifest.json");
  EXPECT_EQ(out.step, in.step);
  EXPECT_EQ(out.tokens, in.tokens);
  EXPECT_EQ(out.hash, in.hash);
  EXPECT_EQ(out.values, in.values);
  EXPECT_EQ(out.metric, in.metric);
  EXPECT_EQ(out.parts, in.parts);
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

/// A manifest that contradicts itself, with a right checksum: no reader gets outside of a file or a tensor.
TEST(Manifest, RefusesWhatCannotBe) {
  const auto refused = [](const std::function<void(CheckpointManifest&)>& change) {
    CheckpointManifest manifest = example();
    change(manifest);
    try {
      parse_manifest(manifest_text(manifest), "m");
      return std::string("taken");
    } catch (const IoError& error) {
      return error.message();
    }
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_EQ(refused([](auto&) {}), "taken");
  EXPECT_TRUE(has(refused([](auto& m) { m.tensors["optim/m/wte"].slices.pop_back(); }), "2 are stored"));
  EXPECT_TRUE(has(refused([](auto& m) { m.tensors["param/wte"].slices[0].part = 9; }), "outside of its file"));
  EXPECT_TRUE(has(refused([](auto& m) { m.tensors["param/wte"].slices[0].at = 599; }), "outside of its file"));
  EXPECT_TRUE(has(refused([](auto& m) { m.tensors["param/wte"].slices[0].strips[0].begin = 6; }), "outside of it"));
  EXPECT_TRUE(has(refused([](auto& m) { m.parts[0].name = "../x"; }), "proper name"));
  EXPECT_TRUE(has(refused([](auto& m) { m.parts[1].checks.pop_back(); }), "checksum for each"));
}

TEST(Strips, SayColumnsInOne) {
  std::vector<Strip> rows;
  for (std::int64_t i = 0; i < 100; ++i) rows.push_back({i * 10 + 2, 3});
  EXPECT_EQ(strips_of(rows), (std::vector<Strip>{{2, 3, 10, 100}}));
  const Strip mixed[] = {{0, 4}, {4, 4}, {20, 1}, {30, 2}, {40, 2}};
  EXPECT_EQ(strips_of(mixed), (std::vector<Strip>{{0, 8}, {20, 1}, {30, 2, 10, 2}}));
}

TEST(Strips, AreShownAsBoxes) {
  const StoredTensor tensor{Dtype::kF32, {8, 10}, {}};
  EXPECT_EQ(slice_text(tensor, {0, 0, {{20, 30}}}), "[2:5, 0:10]");
  EXPECT_EQ(slice_text(tensor, {0, 0, {{2, 3, 10, 8}}}), "[0:8, 2:5]");
  EXPECT_EQ(slice_text(tensor, {0, 0, {{5, 20}}}), "20 elements from 5 on");
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
