// bench/peer.h -- a script that answers one line of JSON to each line it is asked: the other side of a comparison.
#pragma once

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace trireme::bench {

class PeerProcess {
 public:
  /// `words` is the command: the interpreter, the script in bench/peers and its options.
  explicit PeerProcess(std::vector<std::string> words) : script_(words.at(1)) {
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0) throw std::runtime_error("no pipe for the peer");
    child_ = fork();
    if (child_ == 0) {
      dup2(to[0], 0);
      dup2(from[1], 1);
      close(to[1]);
      close(from[0]);
      std::vector<char*> arguments;
      for (std::string& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      execvp(arguments[0], arguments.data());
      std::perror("the peer");
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    in_ = fdopen(to[1], "w");
    out_ = fdopen(from[0], "r");
  }
  ~PeerProcess() {
    std::fclose(in_);
    std::fclose(out_);
    waitpid(child_, nullptr, 0);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  nlohmann::json ask(const std::string& question) {
    fmt::print(in_, "{}\n", question);
    std::fflush(in_);
    std::string line;
    for (int c; (c = std::fgetc(out_)) != EOF && c != '\n';) line.push_back(static_cast<char>(c));
    if (line.empty()) throw std::runtime_error(fmt::format("the peer ended; run {} by hand to see why", script_));
    return nlohmann::json::parse(line);
  }

 private:
  std::string script_;
  pid_t child_;
  std::FILE *in_, *out_;
};

}  // namespace trireme::bench
