// What ranks that are processes do in the tests; started by tests/mpi/*.sh under mpirun, and by tests/ucx/*.sh with
// torchrun's variables. The first argument says which.
//
// Prints "fine" from rank 0 and exits 0 when all went as it should; failures show the way they show in the program: an
// error block from each rank on stderr and exit status 1.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <thread>

#include "tests/comm/collective_checks.h"
#include "trireme/comm/mailbox.h"
#include "trireme/comm/process.h"
#include "trireme/comm/ucx_plugin/ucx_plugin.h"

namespace {

using namespace std::chrono_literals;
using namespace trireme;
using namespace trireme::comm;

Buffer buffer(std::vector<float>& values) { return {values.data(), values.size(), DType::kF32}; }

/// Every rank but the last, which is the one that misbehaves, goes into this call.
void sum(Rank& rank, std::size_t count, Algorithm algorithm, std::optional<std::chrono::milliseconds> deadline = {}) {
  std::vector<float> values(count, 1.0f);
  rank.world().all_reduce(buffer(values), Reduce::kSum, {.algorithm = algorithm, .deadline = deadline}).wait();
}

bool is_last(Rank& rank) { return rank.rank() == rank.ranks() - 1; }

Algorithm algorithm_named(const char* name) { return cost::parse_algorithm(name).value(); }

void mismatch(Rank& rank, Algorithm algorithm) { sum(rank, is_last(rank) ? 5000 : 6000, algorithm); }

void absent(Rank& rank, Algorithm algorithm) {
  sum(rank, 10, algorithm);
  if (is_last(rank)) {
    // Busy elsewhere, far longer than the deadline; but it need not outlive the others.
    for (const auto until = std::chrono::steady_clock::now() + 60s; std::chrono::steady_clock::now() < until;) {
      std::this_thread::sleep_for(50ms);
      rank.world().check_peers();
    }
    return;
  }
  sum(rank, 10'000, algorithm, 3s);
}

void killed(Rank& rank, Algorithm algorithm) {
  sum(rank, 10, algorithm);
  if (is_last(rank)) std::raise(SIGKILL);
  sum(rank, 10'000, algorithm);
}

void throws(Rank& rank, Algorithm algorithm) {
  sum(rank, 10, algorithm);
  if (is_last(rank)) throw IoError("the disk of this rank is on fire");
  sum(rank, 10'000, algorithm);
}

void demand(const std::string& wrong) {
  if (!wrong.empty()) throw Error(wrong);
}

/// Two groups used in opposite orders on different ranks, with a receive that is posted long before its send.
void crossed(Rank& rank) {
  Group& world = rank.world();
  const auto first = world.split(0, rank.rank(), "first"), second = world.split(0, -rank.rank(), "second");
  for (const Algorithm algorithm : first->algorithms(Collective::kAllReduce)) {
    for (const std::size_t count : {std::size_t{3}, std::size_t{300'000}}) {
      std::vector<float> early(10), a(count, 1.0f), b(count, 2.0f), message(10, 7.0f);
      const int next = (rank.rank() + 1) % rank.ranks(), before = (rank.rank() + rank.ranks() - 1) % rank.ranks();
      Work receive = world.recv(buffer(early), before);
      const auto on = [&](Group& group, std::vector<float>& values) {
        return group.all_reduce(buffer(values), Reduce::kSum, {.algorithm = algorithm});
      };
      const bool swapped = rank.rank() % 2 == 1;
      Work one = swapped ? on(*second, b) : on(*first, a);
      Work two = swapped ? on(*first, a) : on(*second, b);
      two.wait();
      one.wait();
      Work send = world.send(buffer(message), next);
      receive.wait();
      send.wait();
      const auto n = static_cast<float>(rank.ranks());
      if (a[0] != n || a.back() != n || b[0] != 2 * n || early[9] != 7)
        throw Error("crossed groups gave a wrong result");
    }
  }
}

/// Mail from everybody to everybody, while the last rank dies in the middle. The others take all that is from those who
/// live, each once and in order, and of the dead one's mail what came, without a gap.
void mail(Rank& rank) {
  constexpr std::uint64_t kLetters = 300;
  const auto mailbox = make_ucx_mailbox(rank.control(), {.address = rank.rank(),
                                                         .limits = {.credit_bytes = 1 << 20, .window_bytes = 1 << 18},
                                                         .deadline = 30s,
                                                         .linger = 1s,
                                                         .break_every = 50});
  std::vector<std::uint64_t> taken(static_cast<std::size_t>(rank.ranks()));
  const auto take = [&](const Mail& letter) {
    std::uint64_t number = 0;
    std::memcpy(&number, letter.bytes.data(), sizeof number);
    if (number != taken[static_cast<std::size_t>(letter.from)]++) throw Error("a letter is missing or came twice");
  };
  for (std::uint64_t i = 0; i < kLetters; ++i) {
    if (is_last(rank) && i == kLetters / 2) std::raise(SIGKILL);
    std::vector<std::byte> letter(8 + i % 7 * 9'000);
    std::memcpy(letter.data(), &i, sizeof i);
    for (int to = 0; to < rank.ranks() - 1; ++to) {  // nobody writes to the one that dies: it would keep the credit
      if (to == rank.rank()) continue;
      while (!mailbox->try_post(to, 0, 0, letter)) {  // waiting for mail alone would be a deadlock: nobody may have any
        if (const auto here = mailbox->try_receive()) take(*here);
        std::this_thread::sleep_for(1ms);
      }
    }
    while (const auto letter_here = mailbox->try_receive()) take(*letter_here);
  }
  const auto complete = [&] {
    for (int from = 0; from < rank.ranks() - 1; ++from) {
      if (from != rank.rank() && taken[static_cast<std::size_t>(from)] != kLetters) return false;
    }
    return true;
  };
  while (!complete()) take(mailbox->receive());
  std::printf("rank %d has all of the living and %d of the dead one\n", rank.rank(), static_cast<int>(taken.back()));
  std::fflush(stdout);
}

/// Mail of megabytes to rank 0 over a link that takes long for each letter, with pauses in between: no connection is
/// given up that was only idle or only takes its time; the one letter that takes too long comes once all the same.
void slow_link(Rank& rank) {
  constexpr std::size_t kMegabyte = 1 << 20, kLetters[] = {1, 2, 2, 2, 2, 8, 1};
  const auto open_descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  std::ptrdiff_t before = 0, after = 0;
  const auto mailbox = make_ucx_mailbox(rank.control(), {.address = rank.rank(), .deadline = 100s, .linger = 1s});
  for (std::size_t i = 0; i < std::size(kLetters); ++i) {
    const std::vector<std::byte> letter(kLetters[i] * kMegabyte, static_cast<std::byte>(i));
    if (rank.rank() == 0) {
      if (mailbox->receive().bytes != letter) throw Error("a letter is missing, came twice or is damaged");
      mailbox->post(1, 0, 0, {});
    } else {
      mailbox->post(0, 0, 0, letter);
      mailbox->receive();
      std::this_thread::sleep_for(700ms);
      (i == 0 ? before : after) = open_descriptors();
    }
  }
  if (rank.rank() == 0) {
    mailbox->receive();  // it has counted
    if (mailbox->try_receive()) throw Error("a letter came twice");
    return;
  }
  mailbox->post(0, 0, 0, {});
  std::printf("descriptors: %d, then %d\n", static_cast<int>(before), static_cast<int>(after));
  // Of a connection that is given up UCX keeps the socket until the other side ends.
  if (after > before + 2) throw Error("more connections than one were given up");
}

/// Mail between all mailboxes, two a rank, over what carries collectives, which go on beside it; twice, since addresses
/// may be given again. Every letter once, in order, and no queue longer than the credit allows.
void letters(Rank& rank) {
  constexpr std::uint64_t kLetters = 200;
  constexpr MailLimits kLimits{.credit_bytes = 256 << 10, .window_bytes = 64 << 10};
  const int ranks = rank.ranks();
  for (int round = 0; round < 2; ++round) {
    const auto exchange = [&](int address) {
      const auto mailbox =
          make_process_mailbox(rank.control(), {.address = address, .limits = kLimits, .deadline = 60s, .linger = 5s});
      std::vector<std::uint64_t> taken(static_cast<std::size_t>(2 * ranks));
      std::uint64_t all = 0;
      const auto take = [&](const Mail& letter) {
        std::uint64_t number = 0;
        std::memcpy(&number, letter.bytes.data(), sizeof number);
        const std::size_t bytes = letter.bytes.size();
        const bool whole = bytes == 8 + number % 9 * 9'000 && (bytes == 8 || letter.bytes.back() == std::byte{7});
        if (number != taken[static_cast<std::size_t>(letter.from)]++ || !whole)
          throw Error("a letter is missing, came twice or is not what was sent");
        ++all;
      };
      for (std::uint64_t i = 0; i < kLetters; ++i) {
        std::vector<std::byte> letter(8 + i % 9 * 9'000, std::byte{7});
        std::memcpy(letter.data(), &i, sizeof i);
        for (int to = 0; to < 2 * ranks; ++to) {
          while (!mailbox->try_post(to, 0, 0, letter)) {
            if (const auto here = mailbox->receive_for(5ms)) take(*here);
          }
        }
      }
      while (all < kLetters * taken.size()) take(mailbox->receive());
      const QueueReading queue = mailbox->queue();
      if (queue.arrivals != queue.departures || queue.arrivals != static_cast<std::int64_t>(all))
        throw Error("the meter of a mailbox counts other mail than was taken");
      if (std::abs(queue.length() - queue.rate() * queue.wait()) > 0.05 * queue.length() + 1e-3)
        throw Error("the meter of a mailbox contradicts Little's law");
      if (queue.length() * 8 > static_cast<double>(2 * ranks) * (256 << 10)) throw Error("a queue beyond its credit");
    };
    std::exception_ptr failure;
    std::thread other([&] {
      try {
        exchange(ranks + rank.rank());
      } catch (...) {
        failure = std::current_exception();
      }
    });
    std::thread calls([&] {
      for (int i = 0; i < 20; ++i) sum(rank, 100'000, Algorithm::kAuto);
    });
    exchange(rank.rank());
    other.join();
    calls.join();
    if (failure) std::rethrow_exception(failure);
    rank.world().barrier().wait();
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: mpirun -n N process_ranks WHAT [ALGORITHM [RANKS_PER_NODE [FINGERPRINT]]]\n");
    return 2;
  }
  const std::string what = arguments[1];
  const Algorithm algorithm = count > 2 ? algorithm_named(arguments[2]) : Algorithm::kAuto;
  const std::map<std::string, std::function<void(Rank&)>> bodies{
      {"collectives",
       [](Rank& rank) {
         Group& world = rank.world();
         demand(check_collectives(world, {.seed = 1, .large_one_in = 24, .small_one_in = 6}));
         demand(check_collectives(world, {.seed = 2, .counts = {1'500'007}, .large_one_in = 120}));
         demand(check_messages(world, 3));
         demand(check_float_bits(world, 4));
         demand(check_extremes(world, 5));
       }},
      {"crossed", [](Rank& rank) { crossed(rank); }},
      {"mismatch", [&](Rank& rank) { mismatch(rank, algorithm); }},
      {"absent", [&](Rank& rank) { absent(rank, algorithm); }},
      {"killed", [&](Rank& rank) { killed(rank, algorithm); }},
      {"hang",
       [&](Rank& rank) {
         write_flights_on_signal();
         std::printf("ready %d\n", static_cast<int>(getpid()));
         std::fflush(stdout);
         if (is_last(rank)) std::this_thread::sleep_for(60s);
         sum(rank, 10'000, algorithm);
       }},
      {"throws", [&](Rank& rank) { throws(rank, algorithm); }},
      {"mail", [](Rank& rank) { mail(rank); }},
      {"letters", [](Rank& rank) { letters(rank); }},
      {"slow_link", [](Rank& rank) { slow_link(rank); }},
  };
  RanksOptions options;
  options.comm.flight_directory = "";
  options.comm.deadline = 60s;
  if (count > 3) options.ranks_per_node = std::atoi(arguments[3]);
  if (count > 4) options.fingerprint = arguments[4];
  try {
    run_process_rank(
        detect_launch(),
        [&](Rank& rank) {
          bodies.at(what)(rank);
          rank.world().barrier().wait();
          if (rank.rank() == 0) std::printf("fine on %s\n", std::string(rank.transport().name()).c_str());
        },
        options);
  } catch (const Error& error) {  // it did not even become a rank
    std::fprintf(stderr, "%s", error.block().c_str());
    return 2;
  }
  return 0;
}
