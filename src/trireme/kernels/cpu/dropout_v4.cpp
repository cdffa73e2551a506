#define TRIREME_DROPOUT_TABLE kDropoutV4
#include "trireme/kernels/cpu/dropout_body.h"
