#define TRIREME_DROPOUT_TABLE kDropoutV3
#include "trireme/kernels/cpu/dropout_body.h"
