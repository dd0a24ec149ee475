#include "loss.inl"

template int rowwise::launch_loss<float>(const rw_loss_params&, void*, bool);
