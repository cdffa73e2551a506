#include "trireme/formats/safetensors_writer.h"

#include <gmock/gmock.h>

#include "tests/formats/samples.h"
#include "trireme/base/random.h"
#include "trireme/formats/format_error.h"

namespace trireme::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string writer_refusal(std::vector<TensorSpec> specs, std::optional<Metadata> metadata = {}) {
  return message_of<ConfigError>([&] { make_safetensors_header(std::move(specs), std::move(metadata)); });
}

const char* const kReferenceFiles[] = {"every_dtype", "odd_names",      "odd_metadata",
                                       "no_tensors",  "empty_metadata", "layers"};

class SafetensorsWriting : public OwnFolder {
 protected:
  fs::path path_ = "m.safetensors";
  void SetUp() override { path_ = folder_ / path_; }
};

TEST_F(SafetensorsWriting, MakesTheBytesThatTheReferenceMakes) {
  for (const char* name : kReferenceFiles) {
    SCOPED_TRACE(name);
    const SafetensorsFile reference(fixtures() / "safetensors" / fmt::format("{}.safetensors", name));
    // From the names and shapes alone, in another order than the file's.
    std::vector<TensorSpec> specs(reference.header().tensors.rbegin(), reference.header().tensors.rend());
    SafetensorsWriter writer(path_, make_safetensors_header(specs, reference.header().metadata));
    EXPECT_EQ(writer.header().tensors, reference.header().tensors);
    for (const TensorSpec& spec : specs) writer.write(spec.name, as_bytes(pattern(spec.name, *bytes_of(spec))));
    writer.finish();
    EXPECT_EQ(read_all(path_), read_all(reference.path()));
  }
}

TEST_F(SafetensorsWriting, AnUntouchedFileIsWrittenBackAsItWas) {
  // A file that our writer would make differently: order, white space, unknown keys, no padding, metadata last.
  const std::string odd = file_with(
      R"({ "b":{"shape":[2],"dtype":"U8","data_offsets":[2,4],"extra":[1]} , "a" : {"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
      "\"__metadata__\":{\"k\":\"\\u00e9\"}}\n",
      "1234");
  write_all(folder_ / "odd", odd);
  const SafetensorsFile source(folder_ / "odd");
  SafetensorsWriter writer(path_, source.header());
  for (const TensorInfo& tensor : source.header().tensors) writer.write(tensor.name, source.bytes(tensor));
  writer.finish();
  EXPECT_EQ(read_all(path_), odd);
}

TEST_F(SafetensorsWriting, TakesTensorsInPartsAndInAnyOrder) {
  const Random random(5, "parts");
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 9; ++i) specs.push_back({fmt::format("t{}", i), i % 2 == 0 ? Dtype::kF32 : Dtype::kU8, {i, 7}});
  SafetensorsWriter writer(path_, make_safetensors_header(specs, std::nullopt));
  std::vector<std::string> left;
  for (const TensorSpec& spec : specs) left.push_back(pattern(spec.name, *bytes_of(spec)));
  for (std::uint64_t draw = 0; !writer.complete(); draw += 2) {
    const std::size_t i = random.below(specs.size(), draw);
    const std::size_t part = std::min<std::size_t>(left[i].size(), random.below(40, draw + 1));
    writer.write(specs[i].name, as_bytes(left[i].substr(0, part)));
    left[i].erase(0, part);
  }
  writer.finish();
  const SafetensorsFile file(path_);
  for (const TensorSpec& spec : specs)
    EXPECT_EQ(as_text(file.bytes(file.tensor(spec.name))), pattern(spec.name, *bytes_of(spec)));
}

TEST_F(SafetensorsWriting, NothingAppearsBeforeItIsWhole) {
  write_all(path_, "what was there before");
  {
    SafetensorsWriter writer(path_, make_safetensors_header({{"x", Dtype::kF32, {2}}}, std::nullopt));
    writer.write("x", as_bytes("1234"));
    EXPECT_EQ(read_all(path_), "what was there before");
    EXPECT_THAT(message_of<InternalError>([&] { writer.finish(); }), HasSubstr("tensor \"x\" has 4 of its 8 bytes"));
  }
  EXPECT_EQ(read_all(path_), "what was there before");
  EXPECT_EQ(contents(folder_).size(), 1U) << "the temporary file stayed";
}

TEST_F(SafetensorsWriting, TwoWritersOfOneNameDoNotMix) {
  const auto header = make_safetensors_header({{"x", Dtype::kU8, {1}}}, std::nullopt);
  SafetensorsWriter a(path_, header), b(path_, header);
  a.write("x", as_bytes("a"));
  b.write("x", as_bytes("b"));
  a.finish();
  b.finish();
  EXPECT_EQ(read_all(path_).back(), 'b');
  EXPECT_EQ(contents(folder_).size(), 1U);
}

TEST_F(SafetensorsWriting, RefusesBytesThatHaveNoPlace) {
  SafetensorsWriter writer(path_, make_safetensors_header({{"x", Dtype::kU8, {2}}}, std::nullopt));
  EXPECT_THAT(message_of<InternalError>([&] { writer.write("y", {}); }), HasSubstr("has no place for a tensor \"y\""));
  writer.write("x", as_bytes("1"));
  EXPECT_THAT(message_of<InternalError>([&] { writer.write("x", as_bytes("23")); }),
              HasSubstr("2 more bytes for tensor \"x\", which has 1 of its 2 already"));
}

TEST_F(SafetensorsWriting, SaysWhereItCannotWrite) {
  const auto header = make_safetensors_header({}, std::nullopt);
  EXPECT_THAT(message_of<IoError>([&] { SafetensorsWriter(folder_ / "no/such/m.safetensors", header); }),
              HasSubstr("no/such/m.safetensors: cannot be created: No such file"));
  EXPECT_THAT(
      message_of<IoError>([&] {
        SafetensorsWriter(path_, make_safetensors_header({{"x", Dtype::kU8, {std::int64_t{1} << 59}}}, std::nullopt));
      }),
      HasSubstr("no room for 576460752303423584 bytes"));
  EXPECT_THAT(contents(folder_), IsEmpty());
}

TEST(SafetensorsHeader, RefusesWhatNoReaderWouldTake) {
  EXPECT_EQ(writer_refusal({{"x", Dtype::kU8, {1}}, {"x", Dtype::kF32, {1}}}), "tensor \"x\" is to be written twice");
  EXPECT_THAT(writer_refusal({{"__metadata__", Dtype::kU8, {1}}}), HasSubstr("cannot be called __metadata__"));
  EXPECT_THAT(writer_refusal({{"\xff", Dtype::kU8, {1}}}), HasSubstr("is no UTF-8 text"));
  EXPECT_THAT(writer_refusal({}, Metadata{{"a", "\xff"}}), HasSubstr("is no UTF-8 text"));
  EXPECT_THAT(writer_refusal({{"x", Dtype::kU8, {-1}}}), HasSubstr("tensor \"x\": U8 [-1] cannot be stored"));
  EXPECT_THAT(writer_refusal({{"x", Dtype::kF4, {3}}}), HasSubstr("tensor \"x\": F4 [3] cannot be stored"));
  EXPECT_THAT(writer_refusal({{"x", Dtype::kU8, std::vector<std::int64_t>(65, 1)}}), HasSubstr("cannot be stored"));
  EXPECT_THAT(writer_refusal({{"x", Dtype::kF32, {INT64_MAX}}}), HasSubstr("cannot be stored"));
  std::vector<TensorSpec> much(8, {"a", Dtype::kU8, {std::int64_t{1} << 59}});
  for (std::size_t i = 0; i < much.size(); ++i) much[i].name += std::to_string(i);
  EXPECT_EQ(make_safetensors_header(much, std::nullopt).data_bytes(), std::uint64_t{1} << 62);
  much.push_back({"e", Dtype::kU8, {1}});
  EXPECT_THAT(writer_refusal(much), HasSubstr("tensor \"e\": U8 [1] cannot be stored"));
  EXPECT_THAT(writer_refusal({{std::string(100'000'000, 'x'), Dtype::kU8, {1}}}), HasSubstr("readers take 100000000"));
}

TEST(SafetensorsHeader, MetadataWithoutTensorsIsValidJson) {
  // The reference writes something here that its own reader refuses.
  EXPECT_EQ(make_safetensors_header({}, Metadata()).text, "{\"__metadata__\":{}}     ");
}

TEST(SafetensorsHeader, WhatIsMadeIsReadBack) {
  const Random random(7, "headers");
  std::uint64_t draw = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<TensorSpec> specs;
    for (std::uint64_t i = random.below(12, draw++); i > 0; --i) {
      TensorSpec spec{fmt::format("t{}\xc3\xa9\n", i), dtypes()[random.below(dtypes().size(), draw++)].value, {}};
      for (std::uint64_t d = random.below(4, draw++); d > 0; --d)
        spec.shape.push_back(static_cast<std::int64_t>(random.below(4, draw++)));
      spec.shape.push_back(4);  // whole bytes for every type
      specs.push_back(std::move(spec));
    }
    std::optional<Metadata> metadata;
    if (round % 3 != 0) metadata.emplace();
    if (round % 3 == 2) metadata->emplace_back("k\"", "v\\");
    const auto made = make_safetensors_header(specs, metadata);
    const std::string file = file_with(made.text, std::string(made.data_bytes(), 'd'));
    ASSERT_EQ(file.size(), made.file_bytes());
    const auto read = parse_safetensors(as_bytes(file), "f");
    EXPECT_EQ(read.tensors, made.tensors);
    EXPECT_EQ(read.metadata, made.metadata);
    EXPECT_EQ(read.text, made.text);
    EXPECT_EQ(read.by_name, made.by_name);
    EXPECT_EQ(read.by_offset, made.by_offset);
  }
}

}  // namespace
}  // namespace trireme::formats
