#include "trireme/formats/hf_directory.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/formats/samples.h"
#include "trireme/base/log.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/hf_writer.h"

namespace trireme::formats {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::string kFirst = "model-00001-of-00007.safetensors", kSecond = "model-00002-of-00007.safetensors";

/// A copy of the split fixture that a test may damage; the log is caught.
class HfModel : public OwnFolder {
 protected:
  void SetUp() override {
    model_ = folder_ / "model";
    fs::copy(fixtures() / "hf/split", model_);
    divert_log([this](std::string_view line) { log_ += std::string(line) + "\n"; });
  }
  void TearDown() override { divert_log(nullptr); }
  std::string refusal() const {
    return message_of<IoError>([&] { HfDirectory model(model_); });
  }
  /// The index with one piece of its text replaced.
  void edit_index(std::string_view from, std::string_view to) const {
    std::string text = read_all(model_ / kHfIndex);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, text.npos) << from;
    write_all(model_ / kHfIndex, text.replace(at, from.size(), to));
  }
  fs::path model_;
  std::string log_;
};

/// The specs in the order the reference had them in.
std::vector<TensorSpec> in_saved_order(const HfDirectory& model) {
  std::vector<TensorSpec> specs;
  for (std::ifstream names(fixtures() / "hf/split/order.txt"); !names.eof();) {
    if (std::string name; std::getline(names, name)) specs.push_back(*model.tensor(name).info);
  }
  return specs;
}

void write_from(const HfDirectory& source, HfWriter& writer) {
  for (const HfTensor& tensor : source.tensors()) writer.write(tensor.info->name, tensor.bytes());
  writer.finish();
}

TEST_F(HfModel, WholeAndSplitHoldTheSameTensors) {
  const HfDirectory whole(fixtures() / "hf/whole"), split(model_);
  EXPECT_THAT(whole.files(), SizeIs(1));
  EXPECT_THAT(split.files(), SizeIs(7));
  EXPECT_EQ(whole.index(), std::nullopt);
  EXPECT_EQ(split.index()->total_size, 1300);
  ASSERT_EQ(whole.tensors().size(), 12U);
  ASSERT_EQ(split.tensors().size(), 12U);
  for (const HfTensor& tensor : whole.tensors()) {
    const HfTensor& other = split.tensor(tensor.info->name);
    EXPECT_EQ(static_cast<const TensorSpec&>(*tensor.info), *other.info);
    EXPECT_EQ(as_text(tensor.bytes()), as_text(other.bytes()));
  }
  EXPECT_EQ(split.config().get<std::int64_t>("vocab_size"), 16);
  EXPECT_EQ(split.find("nonesuch"), nullptr);
  EXPECT_THAT(message_of<FormatError>([&] { split.tensor("lm_head.wait"); }),
              HasSubstr("did you mean \"lm_head.weight\"?"));
  EXPECT_EQ(log_, "");
}

TEST_F(HfModel, StaysValidWhenMoved) {
  HfDirectory opened(model_);
  const std::string bytes = as_text(opened.tensor("lm_head.weight").bytes());
  const HfDirectory moved = std::move(opened);
  EXPECT_EQ(as_text(moved.tensor("lm_head.weight").bytes()), bytes);
}

TEST_F(HfModel, NamesWhatTheIndexAndTheFilesDisagreeOn) {
  edit_index("\"lm_head.weight\"", "\"lm_head.wait\"");
  EXPECT_THAT(
      refusal(),
      AllOf(HasSubstr("model.safetensors.index.json: the files of this model do not fit together (2 problems):"),
            HasSubstr("tensor \"lm_head.wait\" is not in " + kSecond + ", where the index has it"),
            HasSubstr("tensor \"lm_head.weight\" is in " + kSecond + ", but not in the index")));
}

TEST_F(HfModel, NamesATensorThatIsInAnotherFile) {
  edit_index("\"lm_head.weight\": \"" + kSecond, "\"lm_head.weight\": \"" + kFirst);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("tensor \"lm_head.weight\" is not in " + kFirst + ", where the index has it"),
                               HasSubstr("the index names no tensor in " + kSecond),
                               HasSubstr(kSecond + " is there, but the index names no tensor in it")));
}

TEST_F(HfModel, NamesAFileThatIsMissing) {
  fs::remove(model_ / kSecond);
  EXPECT_THAT(refusal(), HasSubstr("\"" + kSecond + "\" is not there; the index names it"));
}

TEST_F(HfModel, ListsOnlyTheFirstOfManyProblems) {
  std::vector<std::pair<std::string, std::string>> map;
  for (int i = 0; i < 1000; ++i) map.emplace_back(fmt::format("t{}", i), kFirst);
  write_all(model_ / kHfIndex, make_hf_index({}, map).text);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("(1008 problems)"), HasSubstr("and 1000 more")));
}

TEST_F(HfModel, AHugeShardNumberCostsNothing) {
  edit_index(kSecond, "model-00002-of-18446744073709551615.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("the index names no tensor in model-00001-of-18446744073709551615.safetensors"));
}

TEST_F(HfModel, NeverLeavesItsFolder) {
  for (const char* name : {"../model/", "/etc/passwd", "..", "", "a\\\\b", "a\\u0000b"}) {
    fs::copy_file(fixtures() / "hf/split" / kHfIndex, model_ / kHfIndex, fs::copy_options::overwrite_existing);
    edit_index(kSecond, name);
    EXPECT_THAT(refusal(), HasSubstr("tensor \"lm_head.weight\": the file")) << name;
  }
}

TEST_F(HfModel, ErrorsInAFileNameThatFile) {
  fs::resize_file(model_ / kSecond, 100);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(kSecond + ":"), HasSubstr("(byte ")));
}

TEST_F(HfModel, SaysWhatAFolderLacks) {
  fs::remove(model_ / kHfIndex);
  EXPECT_THAT(
      refusal(),
      HasSubstr("has neither model.safetensors nor model.safetensors.index.json; it has config.json, model-00001"));
  fs::remove(model_ / "config.json");
  EXPECT_THAT(refusal(), HasSubstr("config.json: cannot be opened: No such file"));
}

TEST_F(HfModel, AShardOfAnotherSplitIsLeftAloneWithAWarning) {
  fs::copy_file(model_ / kFirst, model_ / "model-00001-of-00002.safetensors");
  fs::copy_file(model_ / kFirst, model_ / "consolidated.safetensors");
  EXPECT_THAT(HfDirectory(model_).files(), SizeIs(7));
  EXPECT_THAT(log_,
              HasSubstr("model-00001-of-00002.safetensors belongs to another split of the model and is not read"));
  fs::copy_file(fixtures() / "hf/whole/model.safetensors", model_ / kHfWeights);
  EXPECT_THAT(HfDirectory(model_).files(), SizeIs(1));
  EXPECT_THAT(log_, HasSubstr("model.safetensors is read, model.safetensors.index.json is not"));
}

TEST_F(HfModel, AnUntouchedModelIsWrittenBackAsItWas) {
  for (const char* name : {"whole", "split"}) {
    const HfDirectory source(fixtures() / "hf" / name);
    copy_hf(source, folder_ / name);
    EXPECT_EQ(contents(folder_ / name), contents(source.path())) << name;
  }
}

TEST_F(HfModel, TheSplitIsThatOfTheReference) {
  const HfDirectory whole(fixtures() / "hf/whole");
  HfWriter writer(folder_ / "out/",
                  plan_hf(in_saved_order(whole), whole.config(), {.max_shard_bytes = 200, .total_parameters = 649}));
  writer.add_file("order.txt", read_all(model_ / "order.txt"));
  write_from(whole, writer);
  EXPECT_EQ(contents(folder_ / "out"), contents(fixtures() / "hf/split"));
}

TEST_F(HfModel, OneFileIsThatOfTheReference) {
  const HfDirectory split(model_);
  HfWriter writer(folder_ / "out", plan_hf(in_saved_order(split), split.config(), {}));
  write_from(split, writer);
  EXPECT_EQ(contents(folder_ / "out"), contents(fixtures() / "hf/whole"));
}

TEST_F(HfModel, OtherTypesKeepTheSplit) {
  const HfDirectory source(model_);
  std::vector<TensorSpec> specs;
  for (const HfTensor& tensor : source.tensors()) specs.push_back(*tensor.info);
  EXPECT_EQ(plan_hf_like(source, specs, source.config()).index, source.index()->text);
  std::ranges::find(specs, "lm_head.weight", &TensorSpec::name)->dtype = Dtype::kF32;
  HfConfig config = source.config();
  config.set("torch_dtype", "float32");
  const HfPlan plan = plan_hf_like(source, specs, config);
  ASSERT_THAT(plan.shards, SizeIs(7));
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(plan.shards[i].header.text == source.files()[i].header().text, plan.shards[i].file != kSecond);
    EXPECT_EQ(plan.shards[i].header.metadata, source.files()[i].header().metadata);
  }
  std::string expected = source.index()->text;
  expected.replace(expected.find("1300"), 4, "1556");
  EXPECT_EQ(plan.index, expected);
  EXPECT_EQ(plan.config, config.text());

  specs.pop_back();
  EXPECT_THAT(message_of<ConfigError>([&] { plan_hf_like(source, specs, config); }),
              HasSubstr("is not among the 11 to be written"));
  specs.push_back({"new", Dtype::kU8, {1}});
  EXPECT_THAT(message_of<ConfigError>([&] { plan_hf_like(source, specs, config); }),
              HasSubstr("tensor \"new\" is not in"));
}

TEST_F(HfModel, EmptyTensorsNeedNoBytes) {
  HfWriter writer(folder_ / "out", plan_hf({{"a", Dtype::kU8, {0}}, {"b", Dtype::kU8, {2}}, {"c", Dtype::kF32, {0, 3}}},
                                           HfConfig("{}", "c"), {.max_shard_bytes = 1}));
  writer.write("b", as_bytes("12"));
  writer.write("c", {});
  writer.finish();
  const HfDirectory model(folder_ / "out");
  EXPECT_THAT(model.tensors(), SizeIs(3));
  EXPECT_THAT(model.files(), SizeIs(2));
}

TEST_F(HfModel, NothingAppearsBeforeItIsWhole) {
  const HfDirectory source(model_);
  {
    HfWriter writer(folder_ / "out", plan_hf_like(source));
    writer.write("lm_head.weight", source.tensor("lm_head.weight").bytes());
    EXPECT_FALSE(fs::exists(folder_ / "out"));
    EXPECT_THAT(message_of<InternalError>([&] { writer.write("lm_head.weight", as_bytes("1")); }),
                HasSubstr("has all its bytes already"));
    EXPECT_THAT(message_of<InternalError>([&] { writer.finish(); }), HasSubstr("has 0 of its 256 bytes"));
  }
  EXPECT_THAT(std::vector<fs::path>(fs::directory_iterator(folder_), {}), SizeIs(1)) << "only the source is there";
}

TEST_F(HfModel, AModelIsNeverWrittenOver) {
  const HfDirectory source(model_);
  EXPECT_THAT(message_of<ConfigError>([&] { copy_hf(source, model_); }), HasSubstr("exists and is no empty folder"));
  fs::create_directory(folder_ / "out");
  copy_hf(source, folder_ / "out");
  EXPECT_EQ(contents(folder_ / "out"), contents(model_));
  EXPECT_THAT(message_of<IoError>([&] { copy_hf(source, folder_ / "no/such"); }),
              HasSubstr("no/such: cannot be created"));
}

TEST(HfIndex, ReadsWhatPublishedOnesContain) {
  const HfIndex index = parse_hf_index(R"({"metadata": {"total_size": 1.5e9, "mergekit_version": "0"}, "x": [1],
                                           "weight_map": {"b": "1.safetensors", "a": "2.safetensors"}})",
                                       "i");
  EXPECT_EQ(index.total_size, std::nullopt);
  EXPECT_EQ(index.weight_map[0], (std::pair<std::string, std::string>("b", "1.safetensors")));
  EXPECT_EQ(parse_hf_index(R"({"weight_map": {}, "metadata": null})", "i").metadata, "");
  const HfIndex made = make_hf_index({.total_size = 7, .others = index.metadata}, index.weight_map);
  EXPECT_THAT(made.metadata, AllOf(HasSubstr("\"mergekit_version\": \"0\""), HasSubstr("\"total_size\": 7")));
  EXPECT_EQ(parse_hf_index(made.text, "i").weight_map, made.weight_map);
}

TEST(HfIndex, SaysWhatIsWrong) {
  const auto refusal = [](std::string text) { return message_of<FormatError>([&] { parse_hf_index(text, "i"); }); };
  EXPECT_EQ(refusal("{}"), "i: has no weight_map (byte 0)");
  EXPECT_EQ(refusal(R"({"weight_map": []})"), "i: an object {...} is expected, not '[' (byte 15)");
  EXPECT_EQ(refusal(R"({"weight_map": {"a": 1}})"),
            "i: tensor \"a\": a text in \"quotes\" is expected, not '1' (byte 21)");
  EXPECT_EQ(refusal(R"({"weight_map": {"a": "f", "a": "f"}})"), "i: tensor \"a\": is there twice (byte 26)");
  EXPECT_EQ(refusal(R"({"weight_map": {}, "weight_map": {}})"), "i: weight_map is there twice (byte 19)");
  EXPECT_EQ(refusal(R"({"metadata": 5, "weight_map": {}})"), "i: metadata must be an object {...} (byte 13)");
  EXPECT_EQ(refusal(R"({"metadata": {"a": 1, "a": 2}, "weight_map": {}})"),
            "i: the key \"a\" is there twice (byte 22)");
}

TEST(HfIndex, ShardNamesReadBack) {
  EXPECT_EQ(hf_shard_name(1, 1), "model.safetensors");
  for (const auto& [shard, shards] : {std::pair<std::size_t, std::size_t>{1, 2}, {123, 99999}, {100000, 100000}}) {
    const auto number = parse_hf_shard_name(hf_shard_name(shard, shards));
    ASSERT_TRUE(number);
    EXPECT_EQ(number->shard, shard);
    EXPECT_EQ(number->shards, shards);
  }
  for (const char* name :
       {"model.safetensors", "model-1-of-2.safetensors", "model-00001-of-.safetensors", "model-.safetensors",
        "model-00001-of-00002.bin", "model-0000x-of-00002.safetensors", "model-00001of00002.safetensors"})
    EXPECT_FALSE(parse_hf_shard_name(name)) << name;
}

}  // namespace
}  // namespace trireme::formats
