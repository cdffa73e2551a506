// Runs a fuzz target on files and on seeded mutations of them, where there is no libFuzzer. It sees no coverage, so it
// finds less than libFuzzer does; but it is the same everywhere and takes seconds, which is what every change is tested
// with. The input that is running is in fuzz-last-input of the working folder while it runs, whatever ends the process.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "trireme/base/random.h"

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxInput = 1 << 16;

struct Options {
  std::uint64_t runs = 20000, seed = 1, max_total_time = 0;
  std::vector<std::string> corpus;
};

bool take_number(std::string_view argument, std::string_view name, std::uint64_t& value) {
  if (!argument.starts_with(name)) return false;
  value = std::strtoull(argument.data() + name.size(), nullptr, 10);
  return true;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (take_number(argument, "-runs=", options.runs) || take_number(argument, "-seed=", options.seed) ||
        take_number(argument, "-max_total_time=", options.max_total_time))
      continue;
    if (argument.starts_with("-")) {
      std::fprintf(stderr, "unknown option %s\n", argv[i]);
      std::exit(2);
    }
    options.corpus.emplace_back(argument);
  }
  return options;
}

std::vector<std::string> read_corpus(const std::vector<std::string>& names) {
  std::vector<fs::path> paths;
  for (const std::string& name : names) {
    if (!fs::is_directory(name)) {
      paths.emplace_back(name);
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(name)) {
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
  }
  std::ranges::sort(paths);  // folders list in any order, and a seed must mean the same everywhere
  std::vector<std::string> corpus = {""};
  for (const fs::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "%s cannot be read\n", path.c_str());
      std::exit(2);
    }
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

/// Random damage: bytes, pieces of JSON, numbers at the edges, parts moved within an input and between inputs.
class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed, "fuzz") {}
  std::uint64_t below(std::uint64_t n) { return random_.below(n, draw_++); }

  std::string mutate(std::string text, const std::vector<std::string>& corpus) {
    for (std::uint64_t i = 1 + below(4); i > 0; --i) mutate_once(text, corpus[below(corpus.size())]);
    text.resize(std::min(text.size(), kMaxInput));
    return text;
  }

 private:
  void mutate_once(std::string& text, const std::string& other) {
    static constexpr std::string_view kPieces[] = {
        "{",  "}",     "[",       "]",          "\"",    ":",        ",",      "\\",         "\\u",    "\\ud83d",
        "-1", "1e999", "NaN",     "null",       "true",  "\xff",     "\xc3",   "{\"a\":",    "[[[[[[", "{}",
        " ",  "\"a\"", "\"F4\"",  "\"shape\"",  "[0,0]", "[0]",      "F32",    "1.5",        "/",      "..",
        "0",  "\"\"",  "\"F64\"", "\"dtype\":", "shape", "Infinity", "\"U8\"", "weight_map", "-of-",   "__metadata__",
    };
    static constexpr std::string_view kNumbers[] = {"0",
                                                    "1",
                                                    "2",
                                                    "-1",
                                                    "255",
                                                    "4294967296",
                                                    "2147483648",
                                                    "9223372036854775807",
                                                    "9223372036854775808",
                                                    "18446744073709551615",
                                                    "18446744073709551616",
                                                    "64",
                                                    "1e3",
                                                    "007"};
    const std::size_t at = below(text.size() + 1);
    switch (below(9)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 1:
        if (at < text.size()) text[at] ^= static_cast<char>(1 << below(8));
        break;
      case 2:
        if (at < text.size()) text.erase(at, 1 + below(20));
        break;
      case 3:
        text.insert(at, kPieces[below(std::size(kPieces))]);
        break;
      case 4:
        text.insert(at, text.substr(below(text.size() + 1), below(80)));
        break;
      case 5:
        text.insert(at, other.substr(below(other.size() + 1), below(200)));
        break;
      case 6: {
        const std::size_t digit = text.find_first_of("0123456789", at);
        if (digit == text.npos) break;
        const std::size_t end = std::min(text.find_first_not_of("0123456789", digit), text.size());
        text.replace(digit, end - digit, kNumbers[below(std::size(kNumbers))]);
        break;
      }
      case 7:
        text.resize(at);
        break;
      default:
        text.insert(at, std::string(below(300), "[{\"a9, "[below(7)]));
    }
  }

  trireme::Random random_;
  std::uint64_t draw_ = 0;
};

/// Shared with a file, so that it is there after any death of the process, without a system call for each input.
class LastInput {
 public:
  LastInput() : path_("fuzz-last-input." + std::to_string(::getpid())) {
    const int file = ::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0 || ::ftruncate(file, kMaxInput + 8) != 0) std::exit(2);
    memory_ = static_cast<char*>(::mmap(nullptr, kMaxInput + 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    if (memory_ == MAP_FAILED) std::exit(2);
    ::close(file);
    std::fprintf(stderr, "the input that is running: 8 bytes of length and the input, in %s\n", path_.c_str());
  }
  ~LastInput() { fs::remove(path_); }
  void set(std::string_view input) {
    const std::uint64_t size = std::min(input.size(), kMaxInput);
    std::memcpy(memory_, &size, 8);
    std::memcpy(memory_ + 8, input.data(), size);
  }

 private:
  std::string path_;
  char* memory_;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const std::vector<std::string> corpus = read_corpus(options.corpus);
  LastInput last;
  const auto run = [&](const std::string& input) {
    last.set(input);
    // A copy of exactly this size: a read beyond the end is a read beyond an allocation.
    const std::vector<std::uint8_t> bytes(input.begin(), input.end());
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  };
  for (const std::string& input : corpus) run(input);
  Mutator mutator(options.seed);
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  std::uint64_t done = 0;
  while (options.max_total_time == 0 ? done < options.runs : seconds() < static_cast<double>(options.max_total_time)) {
    run(mutator.mutate(corpus[mutator.below(corpus.size())], corpus));
    ++done;
  }
  std::printf("%zu inputs and %llu mutations of them in %.1f s\n", corpus.size(), static_cast<unsigned long long>(done),
              seconds());
  return 0;
}
