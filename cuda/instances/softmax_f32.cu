#include "softmax.inl"

template int rowwise::launch_softmax<float>(const rw_softmax_params&, void*, bool);
