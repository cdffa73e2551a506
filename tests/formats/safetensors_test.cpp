#include "trireme/formats/safetensors.h"

#include <gmock/gmock.h>

#include "tests/formats/samples.h"
#include "trireme/formats/format_error.h"

namespace trireme::formats {
namespace {

using ::testing::HasSubstr;

SafetensorsHeader parse(std::string_view file) { return parse_safetensors(as_bytes(file), "f"); }
std::string header_refusal(std::string_view file) {
  return message_of<FormatError>([&] { parse(file); });
}

TEST(Safetensors, ReadsEveryTypeOfTheReference) {
  const SafetensorsFile file(fixtures() / "safetensors/every_dtype.safetensors");
  const SafetensorsHeader& header = file.header();
  ASSERT_EQ(header.tensors.size(), 20U);
  EXPECT_EQ(header.metadata, (Metadata{{"format", "pt"}}));
  EXPECT_EQ(header.tensors.front().name, "t.uint64");  // the order of the file
  EXPECT_EQ(header.tensors.back().name, "a.bool");
  for (const TensorInfo& tensor : header.tensors) {
    // Two values of F4 are one byte, and the reference counts values.
    EXPECT_EQ(tensor.shape, (std::vector<std::int64_t>{3, tensor.dtype == Dtype::kF4 ? 4 : 2})) << tensor.name;
    EXPECT_EQ(as_text(file.bytes(tensor)), pattern(tensor.name, tensor.bytes())) << tensor.name;
    EXPECT_EQ(header.find(tensor.name), &tensor);
  }
  EXPECT_EQ(header.find("nonesuch"), nullptr);
}

TEST(Safetensors, ReadsOddNamesScalarsAndEmptyTensors) {
  const SafetensorsFile file(fixtures() / "safetensors/odd_names.safetensors");
  EXPECT_EQ(file.header().metadata, std::nullopt);
  EXPECT_EQ(file.tensor("scalar").shape, std::vector<std::int64_t>());
  EXPECT_EQ(file.tensor("empty").shape, (std::vector<std::int64_t>{0, 5}));
  EXPECT_EQ(file.bytes(file.tensor("empty")).size(), 0U);
  for (const std::string& name :
       {std::string("\0\x01\x1f\x7f\n\t\b\f\r", 9), std::string("quote \" backslash \\ slash /"),
        std::string("\xc3\xa9\xe2\x80\xa8\xf0\x9f\x98\x80"), std::string()})
    EXPECT_EQ(as_text(file.bytes(file.tensor(name))), pattern(name, file.tensor(name).bytes()));
}

TEST(Safetensors, NamesWhatIsNearATensorThatIsNotThere) {
  const SafetensorsFile file(fixtures() / "safetensors/layers.safetensors");
  EXPECT_THAT(message_of<FormatError>([&] { file.tensor("layer.3.weight"); }),
              HasSubstr("layers.safetensors: has no tensor \"layer.3.weight\"; did you mean \"layers.3.weight\"?"));
}

TEST(Safetensors, EveryTypeHasItsName) {
  for (const auto& [name, dtype] : dtypes()) {
    EXPECT_EQ(parse_dtype(name), dtype);
    EXPECT_EQ(name_of(dtype), name);
    const int bytes = 8 * bits_of(dtype) / 8;
    const std::string header =
        fmt::format(R"({{"x":{{"dtype":"{}","shape":[8],"data_offsets":[0,{}]}}}})", name, bytes);
    EXPECT_EQ(parse(file_with(header, std::string(static_cast<std::size_t>(bytes), 'x'))).tensors[0].dtype, dtype);
  }
  EXPECT_EQ(parse_dtype("f32"), std::nullopt);
}

TEST(Safetensors, TakesWhatTheReferenceTakes) {
  EXPECT_TRUE(parse(file_with("{}")).tensors.empty());
  EXPECT_TRUE(parse(file_with(" {} \n")).tensors.empty());
  EXPECT_EQ(parse(file_with(R"({"__metadata__":null})")).metadata, std::nullopt);
  EXPECT_EQ(parse(file_with(R"({"__metadata__":{}})")).metadata, Metadata());
  const auto unknown =
      parse(file_with(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"extra":{"a":[5]}}})", "1"));
  EXPECT_EQ(unknown.tensors.size(), 1U);
  // Any order of the header, empty tensors between others, __metadata__ at the end.
  const auto header =
      parse(file_with(R"({"b":{"data_offsets":[2,4],"shape":[2],"dtype":"U8"},)"
                      R"("e":{"dtype":"F32","shape":[0],"data_offsets":[2,2]},)"
                      R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"__metadata__":{"k":"v"}})",
                      "1234"));
  EXPECT_EQ(header.tensors[0].name, "b");
  EXPECT_EQ(header.by_offset, (std::vector<std::uint32_t>{2, 1, 0}));
  EXPECT_EQ(header.data_bytes(), 4U);
}

struct Bad {
  std::string file, message;
};

std::string tensor_file(std::string_view entry, std::string_view data = "1234") {
  return file_with(fmt::format("{{\"x\":{}}}", entry), data);
}

std::string repeated(std::string_view text, int times) {
  std::string out;
  while (times-- > 0) out += text;
  return out;
}

TEST(Safetensors, RefusesEveryMalformedFileAndSaysWhere) {
  const auto x = [](std::string_view shape, std::string_view offsets, std::string_view dtype = "U8") {
    return fmt::format(R"({{"dtype":"{}","shape":{},"data_offsets":{}}})", dtype, shape, offsets);
  };
  const auto two = [&](std::string_view a, std::string_view b, std::string_view data) {
    return file_with(fmt::format(R"({{"x":{},"y":{}}})", a, b), data);
  };
  const std::string huge_length = std::string("\xff\xff\xff\xff\xff\xff\xff\xff") + "{}";
  const std::string over_limit = std::string("\x01\xe1\xf5\x05\0\0\0\0", 8) + "{}";  // 100'000'001
  const std::string in_limit = std::string("\x00\xe1\xf5\x05\0\0\0\0", 8) + "{}";    // 100'000'000
  const Bad bad[] = {
      {"", "f: has 0 bytes; a safetensors file begins with 8 bytes of header length (byte 0)"},
      {"1234567", "f: has 7 bytes; a safetensors file begins with 8 bytes of header length (byte 0)"},
      {huge_length,
       "f: the header would have 18446744073709551615 bytes, more than the 100000000 that are allowed (byte 0)"},
      {over_limit, "f: the header would have 100000001 bytes, more than the 100000000 that are allowed (byte 0)"},
      {in_limit, "f: the header should end at byte 100000008, but the file does at 10 (byte 0)"},
      {file_with(""), "f: an object {...} is expected, but the text ends (byte 8)"},
      {file_with("[]"), "f: an object {...} is expected, not '[' (byte 8)"},
      {file_with("{}x"), "f: the end of the JSON text is expected, not 'x' (byte 10)"},
      {file_with(std::string("{}\0", 3)), "f: the end of the JSON text is expected, not the byte 0x00 (byte 10)"},
      {file_with("{\"\xff\":1}"), "f: the byte 0xff is no part of UTF-8 text here (byte 10)"},
      {file_with("{", ""), "f: a text in \"quotes\" is expected, but the text ends (byte 9)"},
      {file_with("{\"x\":" + std::string(1000, '[')),
       "f: tensor \"x\": an object {...} is expected, not '[' (byte 13)"},
      {file_with(R"({"x":{"deep":)" + std::string(1000, '[')),
       "f: tensor \"x\": values are nested more than 64 deep (byte 83)"},
      {file_with("{}", "1"), "f: the tensors end here, but 1 more bytes follow (byte 10)"},
      {file_with(R"({"__metadata__":{"a":1}})"), "f: the value of \"a\" in __metadata__ must be a text (byte 29)"},
      {file_with(R"({"__metadata__":5})"), "f: an object {...} is expected, not '5' (byte 24)"},
      {file_with(R"({"__metadata__":{},"__metadata__":{}})"), "f: __metadata__ is there twice (byte 27)"},
      {tensor_file(R"({"shape":[4],"data_offsets":[0,4]})"), "f: tensor \"x\": has no dtype (byte 9)"},
      {tensor_file(R"({"dtype":"U8","data_offsets":[0,4]})"), "f: tensor \"x\": has no shape (byte 9)"},
      {tensor_file(R"({"dtype":"U8","shape":[4]})"), "f: tensor \"x\": has no data_offsets (byte 9)"},
      {tensor_file(R"({"dtype":"U8","dtype":"U8"})"), "f: tensor \"x\": \"dtype\" is there twice (byte 27)"},
      {tensor_file(R"(["U8",[4],[0,4]])"), "f: tensor \"x\": an object {...} is expected, not '[' (byte 13)"},
      {tensor_file(x("[4]", "[0,4]", "F99")), "f: tensor \"x\": the dtype \"F99\" is none of BOOL, F4, F6_E2M3,"},
      {tensor_file(R"({"dtype":7})"), "f: tensor \"x\": a text in \"quotes\" is expected, not '7' (byte 22)"},
      {tensor_file(x("4", "[0,4]")), "f: tensor \"x\": a list [...] is expected, not '4' (byte 35)"},
      {tensor_file(x("[-4]", "[0,4]")),
       "f: tensor \"x\": the number must be whole and from 0 to 9223372036854775807 (byte 36)"},
      {tensor_file(x("[4.0]", "[0,4]")), "f: tensor \"x\": the number must be whole and from 0 to"},
      {tensor_file(x("[9223372036854775808]", "[0,4]")), "f: tensor \"x\": the number must be whole and from 0 to"},
      {tensor_file(x("[\"4\"]", "[0,4]")), "f: tensor \"x\": a whole number is expected, not"},
      {tensor_file(x("[4]", "[0]")), "f: tensor \"x\": data_offsets must be two numbers, but are 1 (byte 54)"},
      {tensor_file(x("[4]", "[0,4,4]")), "f: tensor \"x\": data_offsets must be two numbers, but are more (byte 54)"},
      {tensor_file(x("[4]", "[4,0]")), "f: tensor \"x\": data_offsets end at 0, before they begin at 4 (byte 54)"},
      {tensor_file(x("[5]", "[0,5]")),
       "f: tensor \"x\": data_offsets end at 5, but the file has 4 bytes of data (byte 54)"},
      {tensor_file(x("[3]", "[0,4]")),
       "f: tensor \"x\": U8 [3] takes 3 bytes, but data_offsets [0, 4] hold 4 (byte 9)"},
      {tensor_file(x("[4]", "[0,4]", "F32")),
       "f: tensor \"x\": F32 [4] takes 16 bytes, but data_offsets [0, 4] hold 4"},
      {tensor_file(x("[3]", "[0,4]", "F4")),
       "f: tensor \"x\": F4 [3] has more bytes than can be counted, or ends within"},
      {tensor_file(x("[4294967296,4294967296]", "[0,4]")),
       "f: tensor \"x\": U8 [4294967296, 4294967296] has more bytes"},
      {tensor_file(x("[0,4294967296,4294967296]", "[0,0]")), "has more bytes than can be counted"},
      {tensor_file(x("[9223372036854775807]", "[0,4]")), "has more bytes than can be counted"},
      {tensor_file(x("[" + repeated("1,", 64) + "4]", "[0,4]")),
       "f: tensor \"x\": the shape has more than 64 dimensions (byte 35)"},
      {tensor_file(x("[4]", "[0,4]"), "123"), "but the file has 3 bytes of data"},
      {tensor_file(x("[4]", "[0,4]"), "12345"), "f: the tensors end here, but 1 more bytes follow (byte"},
      {tensor_file(x("[2]", "[2,4]")),
       "f: tensor \"x\": begins at 2 of the data; the bytes from 0 on belong to no tensor (byte 9)"},
      {two(x("[2]", "[0,2]"), x("[1]", "[3,4]"), "1234"),
       "f: tensor \"y\": begins at 3 of the data; the bytes from 2 on belong"},
      {two(x("[3]", "[0,3]"), x("[2]", "[2,4]"), "1234"),
       "f: tensor \"y\": begins at 2 of the data, within tensor \"x\", which ends at 3"},
      {two(x("[4]", "[0,4]"), x("[4]", "[0,4]"), "1234"), "within tensor"},
      {file_with(fmt::format(R"({{"x":{},"x":{}}})", x("[2]", "[0,2]"), x("[2]", "[2,4]")), "1234"),
       "f: tensor \"x\": is there twice; the first one is at byte 9 (byte 61)"},
  };
  for (const auto& [file, message] : bad) EXPECT_THAT(header_refusal(file), HasSubstr(message));
}

TEST(Safetensors, EveryShorterFileIsRefused) {
  for (const char* name : {"every_dtype", "odd_names", "odd_metadata", "no_tensors"}) {
    const std::string whole = read_all(fixtures() / "safetensors" / fmt::format("{}.safetensors", name));
    parse(whole);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      SCOPED_TRACE(fmt::format("{} bytes of {}", size, name));
      header_refusal(std::string_view(whole).substr(0, size));
      if (HasFailure()) return;
    }
    header_refusal(whole + "x");
  }
}

using SafetensorsOnDisk = OwnFolder;

TEST_F(SafetensorsOnDisk, ErrorsNameTheFile) {
  const fs::path path = folder_ / "m.safetensors";
  EXPECT_THAT(message_of<IoError>([&] { SafetensorsFile file(path); }),
              HasSubstr("m.safetensors: cannot be opened: No such file"));
  EXPECT_THAT(message_of<IoError>([&] { SafetensorsFile file(folder_); }), HasSubstr("is no regular file"));
  write_all(path, "");
  EXPECT_THAT(message_of<IoError>([&] { SafetensorsFile file(path); }), HasSubstr("m.safetensors: has 0 bytes"));
  try {
    SafetensorsFile file(path);
  } catch (const IoError& error) {
    EXPECT_FALSE(error.retry_may_help());
    EXPECT_STREQ(error.kind(), "malformed file");
  }
}

TEST_F(SafetensorsOnDisk, AFileThatShrinksIsNoticedBeforeItIsRead) {
  const fs::path path = folder_ / "m.safetensors";
  write_all(path, file_with(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "1234"));
  const SafetensorsFile file(path);
  file.check_size();
  fs::resize_file(path, 20);
  EXPECT_THAT(message_of<IoError>([&] { file.check_size(); }), HasSubstr("bytes when it was opened and has 20 now"));
}

TEST_F(SafetensorsOnDisk, AFileThatIsReplacedStaysReadable) {
  const fs::path path = folder_ / "m.safetensors";
  write_all(path, file_with(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "1234"));
  SafetensorsFile file(path);
  write_all(folder_ / "other", "short");
  fs::rename(folder_ / "other", path);
  const SafetensorsFile moved = std::move(file);
  moved.check_size();
  EXPECT_EQ(as_text(moved.bytes(moved.tensor("x"))), "1234");
}

}  // namespace
}  // namespace trireme::formats
