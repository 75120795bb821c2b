"""`hippo wan`: a wide-area network on one machine.

resolve   A cluster file and a trace as the network that the emulator brings up
training  A plan and a model as the job that is trained over it
protocol  A study of sim-to-real, fixed beforehand
predict   What jaxsim says of real runs, calibrated on a few
study     Calibrate, predict, measure
times     What a study fitted, for links as they are measured
efficiency  What a token is worth at this scale, beside the published fit
scene     What an end-to-end run plays
endtoend  `hippo watch` steers real training while a recorded trace moves the links
runs      How a study ends: a run folder, or one line
start     Start the emulator, which this package does not import
"""
