// Our declarations of NCCL's interface against NCCL's own header, where that is installed.
#include "trireme/comm/nccl/nccl_abi.h"

#include <gtest/gtest.h>

#ifdef TRIREME_NCCL_HEADER
#include TRIREME_NCCL_HEADER

#include <type_traits>

namespace trireme::comm::nccl {
namespace {

// Enumerators and handles are types of our own; everything else must be NCCL's.
template <typename Ours>
struct Theirs {
  using Type = Ours;
};
template <>
struct Theirs<Result> {
  using Type = ncclResult_t;
};
template <>
struct Theirs<Result*> {
  using Type = ncclResult_t*;
};
template <>
struct Theirs<RedOp> {
  using Type = ncclRedOp_t;
};
template <>
struct Theirs<DataType> {
  using Type = ncclDataType_t;
};
template <>
struct Theirs<Comm*> {
  using Type = ncclComm_t;
};
template <>
struct Theirs<Comm**> {
  using Type = ncclComm_t*;
};
template <>
struct Theirs<UniqueId> {
  using Type = ncclUniqueId;
};
template <>
struct Theirs<UniqueId*> {
  using Type = ncclUniqueId*;
};
template <>
struct Theirs<Config*> {
  using Type = ncclConfig_t*;
};
template <>
struct Theirs<Stream> {
  using Type = cudaStream_t;  // and void* where NCCL has that: see Same
};
template <typename Ours, typename Their>
inline constexpr bool kSame = std::is_same_v<typename Theirs<Ours>::Type, Their> || std::is_same_v<Ours, Their>;

template <typename Ours, typename Their>
struct Match : std::false_type {};
template <typename R, typename... A, typename TheirR, typename... TheirA>
requires(sizeof...(A) == sizeof...(TheirA)) struct Match<R (*)(A...), TheirR(TheirA...)>
    : std::bool_constant<kSame<R, TheirR> && (kSame<A, std::remove_const_t<TheirA>> && ...)> {
};

#define EXPECT_NCCL(name) static_assert(Match<decltype(Functions::name), decltype(::name)>::value, #name)
EXPECT_NCCL(ncclGetVersion);
EXPECT_NCCL(ncclGetErrorString);
EXPECT_NCCL(ncclGetLastError);
EXPECT_NCCL(ncclGetUniqueId);
EXPECT_NCCL(ncclCommInitRankConfig);
EXPECT_NCCL(ncclCommFinalize);
EXPECT_NCCL(ncclCommDestroy);
EXPECT_NCCL(ncclCommAbort);
EXPECT_NCCL(ncclCommGetAsyncError);
EXPECT_NCCL(ncclCommRegister);
EXPECT_NCCL(ncclCommDeregister);
EXPECT_NCCL(ncclGroupStart);
EXPECT_NCCL(ncclGroupEnd);
EXPECT_NCCL(ncclAllReduce);
EXPECT_NCCL(ncclReduce);
EXPECT_NCCL(ncclBroadcast);
EXPECT_NCCL(ncclReduceScatter);
EXPECT_NCCL(ncclAllGather);
EXPECT_NCCL(ncclSend);
EXPECT_NCCL(ncclRecv);

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
static_assert(offsetof(Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(Config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
static_assert(offsetof(Config, min_ctas) == offsetof(ncclConfig_t, minCTAs));
static_assert(offsetof(Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(Config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(Config, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(sizeof(Config) <= sizeof(ncclConfig_t));

TEST(NcclAbi, ValuesAreThoseOfTheHeader) {
  EXPECT_EQ(int{kSuccess}, int{ncclSuccess});
  EXPECT_EQ(int{kUnhandledCudaError}, int{ncclUnhandledCudaError});
  EXPECT_EQ(int{kSystemError}, int{ncclSystemError});
  EXPECT_EQ(int{kInternalError}, int{ncclInternalError});
  EXPECT_EQ(int{kInvalidArgument}, int{ncclInvalidArgument});
  EXPECT_EQ(int{kInvalidUsage}, int{ncclInvalidUsage});
  EXPECT_EQ(int{kRemoteError}, int{ncclRemoteError});
  EXPECT_EQ(int{kInProgress}, int{ncclInProgress});
  EXPECT_EQ(int{kSum}, int{ncclSum});
  EXPECT_EQ(int{kProd}, int{ncclProd});
  EXPECT_EQ(int{kMax}, int{ncclMax});
  EXPECT_EQ(int{kMin}, int{ncclMin});
  EXPECT_EQ(int{kAvg}, int{ncclAvg});
  EXPECT_EQ(int{kUint8}, int{ncclUint8});
  EXPECT_EQ(int{kInt32}, int{ncclInt32});
  EXPECT_EQ(int{kInt64}, int{ncclInt64});
  EXPECT_EQ(int{kFloat16}, int{ncclFloat16});
  EXPECT_EQ(int{kFloat32}, int{ncclFloat32});
  EXPECT_EQ(int{kFloat64}, int{ncclFloat64});
  EXPECT_EQ(int{kBfloat16}, int{ncclBfloat16});
  EXPECT_EQ(kUndefined, NCCL_CONFIG_UNDEF_INT);
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(Config{}.magic, theirs.magic);
  EXPECT_GE(static_cast<int>(theirs.version), kOldestVersion);
}

}  // namespace
}  // namespace trireme::comm::nccl
#else
TEST(NcclAbi, ValuesAreThoseOfTheHeader) { GTEST_SKIP() << "nccl.h is not installed here"; }
#endif
