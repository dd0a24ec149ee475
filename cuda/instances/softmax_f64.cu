#include "softmax.inl"

template int rowwise::launch_softmax<double>(const rw_softmax_params&, void*, bool);
