#define TRIREME_CROSS_ENTROPY_TABLE kCrossEntropyV3
#include "trireme/kernels/cpu/cross_entropy_body.h"
