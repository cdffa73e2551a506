#define TRIREME_CROSS_ENTROPY_TABLE kCrossEntropyPlain
#include "trireme/kernels/cpu/cross_entropy_body.h"
